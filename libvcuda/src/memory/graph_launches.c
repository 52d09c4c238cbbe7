/*
 * Implements memory/graph_launches.h. Its calls to the driver run in relaxed capture mode, since another thread may be
 * capturing a stream.
 */
#include "memory/graph_launches.h"

#include <stdatomic.h>
#include <stdlib.h>

#include "driver/clock.h"
#include "driver/cuda_table.h"
#include "driver/stream_capture.h"

enum { PATIENCE = 1000 }; /* looks at a stream, 1 ms apart */

struct graph_launch {
	struct graph_launch *next;
	CUgraphExec exec;   /* NULL: it was destroyed */
	uint64_t size;
	CUevent event;      /* behind the last launch; NULL: the graph has run */
	unsigned int calls; /* calls under way that launch it */
	bool is_kept;       /* a call under way relies on this entry being counted, though the graph may have run */
	bool ran;           /* it was launched at least once */
	CUcontext context;  /* of the event */
	uint64_t begun;     /* the count of frees when the last call began */
	uint64_t frees;     /* the count of frees when the last call began that launched the graph */
};

static atomic_ullong frees; /* counts the calls of graph_launches_freed */

void graph_launches_freed(void)
{
	atomic_fetch_add(&frees, 1);
}

static struct graph_launch *find_or_add_launch(struct graph_launch **list, CUgraphExec exec)
{
	struct graph_launch *entry = *list;

	while (entry && entry->exec != exec)
		entry = entry->next;
	if (entry || !(entry = calloc(1, sizeof(*entry))))
		return entry;
	entry->exec = exec;
	entry->next = *list;
	return *list = entry;
}

static bool counts(const struct graph_launch *entry)
{
	return entry->event || entry->is_kept;
}

uint64_t graph_launches_begin(struct graph_launch **list, const struct graph_memory *graph, struct graph_launch **entry)
{
	struct graph_launch *found = *entry = find_or_add_launch(list, graph->exec);

	if (!found)
		return graph->size;
	bool finds_it = found->ran && found->frees == atomic_load(&frees);
	found->size = graph->size;
	found->calls++;
	found->begun = atomic_load(&frees);
	const uint64_t beside = counts(found) ? 0 : graph->size - (finds_it ? graph->left : 0);
	found->is_kept = beside < graph->size; /* the driver frees what is left before the launch takes it again */
	return beside;
}

static void replace(struct graph_launch *entry, CUevent event)
{
	if (entry->event)
		(void)REAL(cuEventDestroy_v2, entry->event);
	entry->event = event;
}

void graph_launches_end(struct graph_launch *entry, struct graph_launch_mark mark)
{
	if (!--entry->calls)
		entry->is_kept = false;
	if (!mark.context)
		return;
	replace(entry, mark.event);
	entry->context = mark.context;
	entry->ran = true;
	entry->frees = entry->begun;
}

void graph_launches_drop_context(struct graph_launch *list, CUcontext context)
{
	for (struct graph_launch *entry = list; entry; entry = entry->next)
		if (entry->event && entry->context == context)
			entry->event = NULL;
}

void graph_launches_gone(struct graph_launch *list, CUgraphExec exec)
{
	for (struct graph_launch *entry = list; entry; entry = entry->next)
		if (entry->exec == exec)
			entry->exec = NULL;
}

/* A query that fails means that the context was destroyed, and with it the event and the graph's memory. */
static void check_event(struct graph_launch *entry)
{
	if (entry->event && REAL(cuEventQuery, entry->event) != CUDA_ERROR_NOT_READY)
		replace(entry, NULL);
}

static uint64_t count_bytes(struct graph_launch **list)
{
	uint64_t bytes = 0;

	for (struct graph_launch **at = list; *at;) {
		struct graph_launch *entry = *at;
		check_event(entry);
		if (counts(entry))
			bytes += entry->size;
		if (counts(entry) || entry->calls || entry->exec) {
			at = &entry->next;
		} else {
			*at = entry->next;
			free(entry);
		}
	}
	return bytes;
}

uint64_t graph_launches_bytes(struct graph_launch **list)
{
	if (!*list)
		return 0;
	CUstreamCaptureMode mode = stream_capture_relax();
	uint64_t bytes = count_bytes(list);
	stream_capture_restore(mode);
	return bytes;
}

static CUevent record_event(CUstream stream)
{
	CUevent event;

	if (REAL(cuEventCreate, &event, CU_EVENT_DISABLE_TIMING) != CUDA_SUCCESS)
		return NULL;
	if (REAL(cuEventRecord, event, stream) == CUDA_SUCCESS)
		return event;
	(void)REAL(cuEventDestroy_v2, event);
	return NULL;
}

struct graph_launch_mark graph_launches_mark(CUstream stream)
{
	struct graph_launch_mark mark = {NULL, NULL};
	CUcontext popped;
	CUstreamCaptureMode mode = stream_capture_relax();
	bool pushed = REAL(cuStreamGetCtx, stream, &mark.context) == CUDA_SUCCESS &&
		      REAL(cuCtxPushCurrent_v2, mark.context) == CUDA_SUCCESS;

	if (!pushed)
		(void)REAL(cuCtxGetCurrent, &mark.context);
	mark.event = record_event(stream);
	if (!mark.event)
		(void)REAL(cuStreamSynchronize, stream);
	if (pushed)
		(void)REAL(cuCtxPopCurrent_v2, &popped);
	stream_capture_restore(mode);
	return mark;
}

void graph_launches_await(CUstream stream)
{
	struct graph_launch_mark mark = graph_launches_mark(stream);
	CUstreamCaptureMode mode = stream_capture_relax();

	for (int look = 0; mark.event && look < PATIENCE && REAL(cuEventQuery, mark.event) == CUDA_ERROR_NOT_READY;
	     look++)
		clock_sleep_until(clock_now() + NS_PER_MS);
	if (mark.event)
		(void)REAL(cuEventDestroy_v2, mark.event);
	stream_capture_restore(mode);
}
