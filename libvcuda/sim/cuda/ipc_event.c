/*
 * Events that other processes wait for. A page that all these processes map contains how often the event was recorded
 * and the last record that its stream has reached. A waiting stream reads that page (see cuda/watch.h). Events of one
 * process are in cuda/event.c.
 */
#include "cuda/ipc_event.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cuda/ipc.h"
#include "cuda/watch.h"
#include "state/clock.h"

#define PAGE 4096
#define SEALS (F_SEAL_SHRINK | F_SEAL_GROW)
#define LOOK_NS 50000u

/* Any process that has the event may write to the page, so its values are used as plain numbers only. */
struct page {
	char magic[8];
	uint64_t recorded, reached;
	int32_t recorder; /* pid of the process that recorded last */
};

struct sim_shared {
	unsigned references; /* by the event, by submitted works and by watches; under the lock */
	int fd;
	struct page *page;
};

struct record {
	struct sim_shared *shared;
	uint64_t number;
};

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

struct sim_shared *sim_ipc_event_new(void)
{
	int fd = memfd_create("vgpu-sim-event", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	struct sim_shared *shared = NULL;

	/* The file's size is sealed, so a process that maps it cannot get SIGBUS. */
	if (fd >= 0 && ftruncate(fd, PAGE) == 0 && fcntl(fd, F_ADD_SEALS, SEALS) == 0)
		shared = adopt(fd);
	if (shared)
		memcpy(shared->page->magic, SIM_IPC_EVENT, sizeof shared->page->magic);
	else if (fd >= 0)
		close(fd);
	return shared;
}

void sim_ipc_event_drop(struct sim_shared *shared)
{
	if (!shared || --shared->references)
		return;
	munmap(shared->page, PAGE);
	close(shared->fd);
	free(shared);
}

static uint64_t recorded(const struct sim_shared *shared)
{
	return __atomic_load_n(&shared->page->recorded, __ATOMIC_ACQUIRE);
}

/* A record of a process that has ended counts as reached: the work has ended with the process. */
static bool is_reached(const struct sim_shared *shared, uint64_t number)
{
	int32_t recorder = __atomic_load_n(&shared->page->recorder, __ATOMIC_ACQUIRE);

	return __atomic_load_n(&shared->page->reached, __ATOMIC_ACQUIRE) >= number ||
	       (recorder > 0 && kill(recorder, 0) != 0 && errno == ESRCH);
}

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
	sim_ipc_event_drop(shared);
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

	if (!is_reached(record->shared, record->number))
		return false;
	let_go(record->shared);
	return true; /* the caller frees the record */
}

CUresult sim_ipc_event_record(CUevent event, CUstream stream)
{
	struct sim_work work = {.type = CU_GRAPH_NODE_TYPE_HOST, .host.function = reach};

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
	uint64_t number = recorded(event->shared);
	struct sim_shared *shared = event->shared;
	bool waits = !is_reached(shared, number);
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
	return is_reached(event->shared, recorded(event->shared)) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

/* Called under the lock, which is released meanwhile. */
void sim_ipc_event_synchronize(struct sim_event *event)
{
	struct sim_shared *shared = event->shared;
	uint64_t number = recorded(shared);

	shared->references++;
	while (!is_reached(shared, number)) {
		pthread_mutex_unlock(&sim_driver.lock);
		sim_clock_sleep_until(sim_clock_now() + LOOK_NS);
		pthread_mutex_lock(&sim_driver.lock);
	}
	sim_ipc_event_drop(shared);
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

static struct sim_shared *open_shared(const struct sim_ipc_handle *handle)
{
	int fd = sim_ipc_open(handle);
	struct stat st;
	struct sim_shared *shared = NULL;

	if (fd >= 0 && fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_size == PAGE &&
	    (fcntl(fd, F_GET_SEALS) & SEALS) == SEALS)
		shared = adopt(fd);
	if (!shared && fd >= 0)
		close(fd);
	if (shared && memcmp(shared->page->magic, SIM_IPC_EVENT, sizeof shared->page->magic)) {
		sim_ipc_event_drop(shared);
		shared = NULL;
	}
	return shared;
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
	struct sim_shared *shared = open_shared(&handle);
	if (!shared)
		return CUDA_ERROR_INVALID_VALUE;
	CUevent event = sim_event_new(context);
	pthread_mutex_lock(&sim_driver.lock);
	if (event) {
		event->flags |= CU_EVENT_INTERPROCESS;
		event->shared = shared;
		*out = event;
	} else {
		sim_ipc_event_drop(shared);
	}
	return sim_object_unlock(event ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY);
}
