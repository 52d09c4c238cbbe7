/*
 * Implements memory/nvml_figures.h. In the initial pid namespace all pids are believed; in any other, a pid that no
 * process here has shows that the list is the host's.
 */
#include "memory/nvml_figures.h"

#include <string.h>
#include <unistd.h>

#include "base/peers.h"
#include "base/process.h"

/* In the initial pid namespace the host's pids are this namespace's. */
static bool namespace_is_the_hosts(void)
{
	static const char initial[] = "pid:[4026531836]"; /* PROC_PID_INIT_INO; stat(2) would want a newer glibc */
	char name[sizeof(initial) + 16], path[PROCESS_PATH];

	process_path(path, "ns/pid");
	return readlink(path, name, sizeof(name)) == (ssize_t)sizeof(initial) - 1 &&
	       memcmp(name, initial, sizeof(initial) - 1) == 0;
}

bool nvml_figures_are_ours(const struct nvml_figure *list, unsigned int count)
{
	if (namespace_is_the_hosts())
		return true;
	for (unsigned int i = 0; i < count; i++)
		if (!peers_is_visible(list[i].pid))
			return false;
	return true;
}

bool nvml_figures_of(const struct nvml_figure *list, unsigned int count, unsigned int pid, uint64_t *used)
{
	unsigned int found = 0;

	*used = 0;
	for (unsigned int i = 0; i < count; i++) {
		if (list[i].pid != pid)
			continue;
		*used = list[i].used;
		found++;
	}
	return found == 1; /* with two, one lives in another pid namespace and has the same pid there */
}

uint64_t nvml_figures_unaccounted(const struct nvml_figure *list, unsigned int count,
				  const struct usage_process *process)
{
	uint64_t used;

	if (!process->unaccounted || !nvml_figures_of(list, count, process->pid, &used))
		return 0;
	used += process->unlisted < process->held ? process->unlisted : process->held;
	return used > process->held ? used - process->held : 0;
}
