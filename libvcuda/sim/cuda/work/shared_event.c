/*
 * The page of an event that processes share: how often the event was recorded, and the last record that its stream has
 * reached. All these processes map it. Recording and waiting are in cuda/work/ipc_event.c.
 */
#include "cuda/work/shared_event.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define PAGE 4096
#define SEALS (F_SEAL_SHRINK | F_SEAL_GROW)
#define MAGIC "vgpu-evt"

static struct sim_shared *adopt(int fd)
{
	struct sim_shared *shared = fd >= 0 ? calloc(1, sizeof *shared) : NULL;
	void *at = shared ? mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) : MAP_FAILED;

	if (at == MAP_FAILED) {
		free(shared);
		return NULL;
	}
	*shared = (struct sim_shared){.references = 1, .fd = fd, .page = at};
	return shared;
}

struct sim_shared *sim_shared_event_new(void)
{
	int fd = memfd_create("vgpu-sim-event", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	struct sim_shared *shared = NULL;

	/* The file's size is sealed, so a process that maps it cannot get SIGBUS. */
	if (fd >= 0 && ftruncate(fd, PAGE) == 0 && fcntl(fd, F_ADD_SEALS, SEALS) == 0)
		shared = adopt(fd);
	if (shared)
		memcpy(shared->page->magic, MAGIC, sizeof shared->page->magic);
	else if (fd >= 0)
		close(fd);
	return shared;
}

void sim_shared_event_drop(struct sim_shared *shared)
{
	if (!shared || --shared->references)
		return;
	munmap(shared->page, PAGE);
	close(shared->fd);
	free(shared);
}

uint64_t sim_shared_event_recorded(const struct sim_shared *shared)
{
	return __atomic_load_n(&shared->page->recorded, __ATOMIC_ACQUIRE);
}

/* A record of a process that has ended counts as reached: the work has ended with the process. */
bool sim_shared_event_is_reached(const struct sim_shared *shared, uint64_t number)
{
	int32_t recorder = __atomic_load_n(&shared->page->recorder, __ATOMIC_ACQUIRE);

	return __atomic_load_n(&shared->page->reached, __ATOMIC_ACQUIRE) >= number ||
	       (recorder > 0 && kill(recorder, 0) != 0 && errno == ESRCH);
}

struct sim_shared *sim_shared_event_open(int fd)
{
	struct stat st;
	struct sim_shared *shared = NULL;

	if (fd >= 0 && fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_size == PAGE &&
	    (fcntl(fd, F_GET_SEALS) & SEALS) == SEALS)
		shared = adopt(fd);
	if (!shared && fd >= 0)
		close(fd);
	if (shared && memcmp(shared->page->magic, MAGIC, sizeof shared->page->magic)) {
		sim_shared_event_drop(shared);
		shared = NULL;
	}
	return shared;
}
