/*
 * What ends with a context, in this order, and with a process. It is a list here, because it is in all floors, and
 * cuda/base/context.c is below most of them.
 */
#include "cuda/memory/graph_memory.h"
#include "cuda/code/module.h"
#include "cuda/work/queue.h"
#include "state/clock.h"
#include "state/internal.h"

static void drop_allocations(struct sim_context *context)
{
	sim_allocation_drop_all(&context->allocations);
}

void (*const sim_context_ends[])(struct sim_context *context) = {
	sim_queue_drain,
	sim_queue_forget_all,
	sim_module_drop_all,
	sim_event_drop_all,
	sim_object_destroy_all,
	drop_allocations,
	NULL,
};

void (*const sim_context_last_ends[])(CUdevice device) = {sim_graph_memory_end, NULL};

/* A process that exits keeps its memory while the driver tears down what it left. Programs cannot reap it until then. */
__attribute__((destructor)) static void tear_down(void)
{
	if (sim_slots_own() >= 0 && sim_state_header()->teardown_ms)
		sim_clock_sleep_until(sim_clock_now() + sim_state_header()->teardown_ms * UINT64_C(1000000));
}
