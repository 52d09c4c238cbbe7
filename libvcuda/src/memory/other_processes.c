/*
 * Implements memory/other_processes.h. Nobody halts the calls of another process, so the usage region is read before and
 * after the question to NVML.
 */
#include "memory/other_processes.h"

#include <unistd.h>

#include "shared/usage.h"

enum { PROCESSES = 256 };

/* The container's processes before the last question. */
static struct usage_process asked[PROCESSES] __attribute__((aligned(64)));
static unsigned int asked_count;

bool other_processes_ask(const uint8_t uuid[16], struct nvml_list *figures)
{
	unsigned int count = usage_processes(uuid, asked, PROCESSES);

	asked_count = count < PROCESSES ? count : PROCESSES;
	return nvml_lists_ask(uuid, figures);
}

static uint64_t missing(const struct usage_process *process, uint64_t context)
{
	return process->unaccounted && context > process->overhead ? context - process->overhead : 0;
}

static struct usage_process before_the_question(const struct usage_process *process)
{
	for (unsigned int i = 0; i < asked_count; i++)
		if (asked[i].pid == process->pid)
			return asked[i];
	return (struct usage_process){.pid = process->pid};
}

/* What NVML lists, and what it does not, less what is booked as overhead: no process lacks more. */
static uint64_t most_missing(const struct usage_process *process, uint64_t used)
{
	return used > process->overhead ? used - process->overhead : 0;
}

/*
 * The process may have freed memory after the question, or booked it between the first look and the question: what it
 * held at most counts as held. What it has booked for a call under way hides as much of its overhead. But if it is listed
 * it has a context, so it lacks no less than is known of contexts, unless it lacked that only before the question or only
 * after it. What is known of contexts may have code in it, so that is in doubt.
 */
static uint64_t unaccounted_of(const struct nvml_list *figures, const struct usage_process *process, uint64_t context,
			       uint64_t *doubt)
{
	const struct usage_process before = before_the_question(process);
	struct usage_process most = *process;
	uint64_t used, least = missing(process, context);

	most.held = before.held > most.held ? before.held : most.held;
	uint64_t bytes = nvml_figures_unaccounted(figures->list, figures->count, &most);
	if (!nvml_figures_of(figures->list, figures->count, process->pid, &used) || !used)
		return bytes;
	least = missing(&before, context) < least ? missing(&before, context) : least;
	least = most_missing(process, used) < least ? most_missing(process, used) : least;
	bool is_first = !context && process->unaccounted; /* nobody knows yet what a context takes */
	*doubt = bytes < least || is_first ? (used * 31 + process->held) * 31 + process->pid : 0;
	return bytes > least ? bytes : least;
}

struct other_processes other_processes_unaccounted(int card, const uint8_t uuid[16], const struct nvml_list *figures,
						   bool is_quiet)
{
	struct usage_process list[PROCESSES];
	unsigned int count = usage_processes(uuid, list, PROCESSES);
	struct other_processes others = {.bytes = usage_foreign_unaccounted(card)};
	uint64_t context = usage_context_size(card);

	for (unsigned int i = 0; i < count && i < PROCESSES; i++) {
		if (list[i].pid == (unsigned int)getpid())
			continue;
		uint64_t doubt = 0, bytes = unaccounted_of(figures, &list[i], is_quiet ? 0 : context, &doubt);
		others.doubt = others.doubt * 31 + doubt;
		others.bytes += bytes;
		others.creating += list[i].creating;
		uint64_t overhead = list[i].overhead + bytes;
		if (overhead && (!others.least || overhead < others.least))
			others.least = overhead;
	}
	return others;
}
