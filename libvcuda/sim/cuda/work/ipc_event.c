/*
 * Events that other processes wait for: recording, waiting and querying by the page of cuda/work/shared_event.h, which
 * a waiting stream reads (see cuda/work/watch.h), and their IPC handles. Events of one process are in
 * cuda/work/event.c.
 */
#include "cuda/work/ipc_event.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cuda/memory/ipc.h"
#include "cuda/work/shared_event.h"
#include "cuda/work/watch.h"
#include "state/clock.h"

#define LOOK_NS 50000u

struct record {
	struct sim_shared *shared;
	uint64_t number;
};

/* A record of the event as it is now, which a submitted work holds. */
static struct record *hold_record(struct sim_event *event, uint64_t number)
{
	struct record *record = malloc(sizeof *record);

	if (!record)
		return NULL;
	*record = (struct record){event->shared, number};
	event->shared->references++;
	return record;
}

static void let_go(struct sim_shared *shared)
{
	pthread_mutex_lock(&sim_driver.lock);
	sim_shared_event_drop(shared);
	pthread_mutex_unlock(&sim_driver.lock);
}

static void reach(void *argument)
{
	struct record *record = argument;
	uint64_t *reached = &record->shared->page->reached;
	uint64_t had = __atomic_load_n(reached, __ATOMIC_ACQUIRE);

	while (had < record->number &&
	       !__atomic_compare_exchange_n(reached, &had, record->number, false, __ATOMIC_RELEASE, __ATOMIC_ACQUIRE))
		;
	let_go(record->shared);
	free(record);
}

static bool has_come(void *argument)
{
	struct record *record = argument;

	if (!sim_shared_event_is_reached(record->shared, record->number))
		return false;
	let_go(record->shared);
	return true; /* the caller frees the record */
}

CUresult sim_ipc_event_record(CUevent event, CUstream stream)
{
	struct sim_work work = {.type = CU_GRAPH_NODE_TYPE_HOST, .host = {.function = reach, .by_card = true}};

	TRY(sim_object_lock(event, SIM_EVENT));
	struct page *page = event->shared->page;
	struct record *record = hold_record(event, 0);
	work.host.argument = record;
	if (record) {
		__atomic_store_n(&page->recorder, getpid(), __ATOMIC_RELEASE);
		record->number = __atomic_add_fetch(&page->recorded, 1, __ATOMIC_ACQ_REL);
	}
	pthread_mutex_unlock(&sim_driver.lock);
	CUresult result = record ? sim_queue_submit(stream, &work, false) : CUDA_ERROR_OUT_OF_MEMORY;
	if (result != CUDA_SUCCESS && record)
		reach(record);
	return result;
}

CUresult sim_ipc_event_wait(CUstream stream, CUevent event)
{
	struct record *record = NULL;

	TRY(sim_object_lock(event, SIM_EVENT));
	uint64_t number = sim_shared_event_recorded(event->shared);
	struct sim_shared *shared = event->shared;
	bool waits = !sim_shared_event_is_reached(shared, number);
	if (waits)
		record = hold_record(event, number);
	pthread_mutex_unlock(&sim_driver.lock);
	if (!waits)
		return sim_stream_check(stream);
	CUresult result = record ? sim_watch(stream, has_come, record) : CUDA_ERROR_OUT_OF_MEMORY;
	if (result != CUDA_SUCCESS && record)
		let_go(shared);
	return result;
}

CUresult sim_ipc_event_query(const struct sim_event *event)
{
	bool is_reached = sim_shared_event_is_reached(event->shared, sim_shared_event_recorded(event->shared));

	return is_reached ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

/* Called under the lock, which is released meanwhile. */
void sim_ipc_event_synchronize(struct sim_event *event)
{
	struct sim_shared *shared = event->shared;
	uint64_t number = sim_shared_event_recorded(shared);

	shared->references++;
	while (!sim_shared_event_is_reached(shared, number)) {
		pthread_mutex_unlock(&sim_driver.lock);
		sim_clock_sleep_until(sim_clock_now() + LOOK_NS);
		pthread_mutex_lock(&sim_driver.lock);
	}
	sim_shared_event_drop(shared);
}

SIM_EXPORT CUresult cuIpcGetEventHandle(CUipcEventHandle *out, CUevent event)
{
	struct sim_ipc_handle handle = sim_ipc_handle_new(SIM_IPC_EVENT);
	CUresult result = out ? sim_object_lock(event, SIM_EVENT) : CUDA_ERROR_INVALID_VALUE;

	if (result != CUDA_SUCCESS)
		return result;
	if (!event->shared || !sim_ipc_put_file(&handle, event->shared->fd))
		result = CUDA_ERROR_INVALID_HANDLE;
	pthread_mutex_unlock(&sim_driver.lock);
	if (result == CUDA_SUCCESS)
		memcpy(out, &handle, sizeof handle);
	return result;
}

SIM_EXPORT CUresult cuIpcOpenEventHandle(CUevent *out, CUipcEventHandle opaque)
{
	struct sim_context *context;
	struct sim_ipc_handle handle;
	CUresult result = sim_context_current(&context);

	memcpy(&handle, &opaque, sizeof handle);
	if (result == CUDA_SUCCESS)
		result = out ? sim_ipc_check(&handle, SIM_IPC_EVENT) : CUDA_ERROR_INVALID_VALUE;
	if (result != CUDA_SUCCESS)
		return result;
	struct sim_shared *shared = sim_shared_event_open(sim_ipc_open(&handle));
	REJECT(!shared);
	CUevent event = sim_event_new(context);
	pthread_mutex_lock(&sim_driver.lock);
	if (event) {
		event->flags |= CU_EVENT_INTERPROCESS;
		event->shared = shared;
		*out = event;
	} else {
		sim_shared_event_drop(shared);
	}
	return sim_object_unlock(event ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY);
}
