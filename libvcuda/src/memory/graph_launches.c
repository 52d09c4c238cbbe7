/*
 * Implements memory/graph_launches.h. Its calls to the driver run in relaxed capture mode, since another thread may be
 * capturing a stream.
 */
#include "memory/graph_launches.h"

#include <stdatomic.h>
#include <stdlib.h>

#include "base/clock.h"
#include "driver/capture_mode.h"
#include "driver/cuda_table.h"

enum { PATIENCE = 1000 }; /* looks at a stream, 1 ms apart */

struct launched {
	struct launched *next;
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

static atomic_ullong frees; /* counts the calls of launched_freed */

void launched_freed(void)
{
	atomic_fetch_add(&frees, 1);
}

static struct launched *find_or_add(struct launched **list, CUgraphExec exec)
{
	struct launched *entry = *list;

	while (entry && entry->exec != exec)
		entry = entry->next;
	if (entry || !(entry = calloc(1, sizeof(*entry))))
		return entry;
	entry->exec = exec;
	entry->next = *list;
	return *list = entry;
}

static bool counts(const struct launched *entry)
{
	return entry->event || entry->is_kept;
}

uint64_t launched_begin(struct launched **list, const struct graph_memory *graph, struct launched **entry)
{
	struct launched *found = *entry = find_or_add(list, graph->exec);

	if (!found)
		return graph->size;
	bool finds_it = found->ran && found->frees == atomic_load(&frees);
	found->size = graph->size;
	found->calls++;
	found->begun = atomic_load(&frees);
	found->is_kept = counts(found);
	if (found->is_kept)
		return 0;
	return graph->size - (finds_it ? graph->left : 0);
}

static void replace(struct launched *entry, CUevent event)
{
	if (entry->event)
		(void)REAL(cuEventDestroy_v2, entry->event);
	entry->event = event;
}

void launched_end(struct launched *entry, struct launched_mark mark)
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

void launched_drop_context(struct launched *list, CUcontext context)
{
	for (struct launched *entry = list; entry; entry = entry->next)
		if (entry->event && entry->context == context)
			entry->event = NULL;
}

void launched_gone(struct launched *list, CUgraphExec exec)
{
	for (struct launched *entry = list; entry; entry = entry->next)
		if (entry->exec == exec)
			entry->exec = NULL;
}

/* A query that fails means that the context was destroyed, and with it the event and the graph's memory. */
static void look(struct launched *entry)
{
	if (entry->event && REAL(cuEventQuery, entry->event) != CUDA_ERROR_NOT_READY)
		replace(entry, NULL);
}

static uint64_t count(struct launched **list)
{
	uint64_t bytes = 0;

	for (struct launched **at = list; *at;) {
		struct launched *entry = *at;
		look(entry);
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

uint64_t launched_bytes(struct launched **list)
{
	if (!*list)
		return 0;
	CUstreamCaptureMode mode = capture_mode_relax();
	uint64_t bytes = count(list);
	capture_mode_restore(mode);
	return bytes;
}

static CUevent record(CUstream stream)
{
	CUevent event;

	if (REAL(cuEventCreate, &event, CU_EVENT_DISABLE_TIMING) != CUDA_SUCCESS)
		return NULL;
	if (REAL(cuEventRecord, event, stream) == CUDA_SUCCESS)
		return event;
	(void)REAL(cuEventDestroy_v2, event);
	return NULL;
}

struct launched_mark launched_mark(CUstream stream)
{
	struct launched_mark mark = {NULL, NULL};
	CUcontext popped;
	CUstreamCaptureMode mode = capture_mode_relax();
	bool pushed = REAL(cuStreamGetCtx, stream, &mark.context) == CUDA_SUCCESS &&
		      REAL(cuCtxPushCurrent_v2, mark.context) == CUDA_SUCCESS;

	if (!pushed)
		(void)REAL(cuCtxGetCurrent, &mark.context);
	mark.event = record(stream);
	if (!mark.event)
		(void)REAL(cuStreamSynchronize, stream);
	if (pushed)
		(void)REAL(cuCtxPopCurrent_v2, &popped);
	capture_mode_restore(mode);
	return mark;
}

bool launched_await(CUstream stream)
{
	struct launched_mark mark = launched_mark(stream);
	CUstreamCaptureMode mode = capture_mode_relax();
	int look = 0;

	while (mark.event && look < PATIENCE && REAL(cuEventQuery, mark.event) == CUDA_ERROR_NOT_READY) {
		clock_sleep_until(clock_now() + NS_PER_MS);
		look++;
	}
	if (mark.event)
		(void)REAL(cuEventDestroy_v2, mark.event);
	capture_mode_restore(mode);
	return look > 0;
}
