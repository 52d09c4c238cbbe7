/*
 * Semaphores of another interface (Vulkan, for example), imported by a file descriptor. Here that is a file of eight
 * bytes or more that can be mapped; its first word is the semaphore, so any process with the file can wait for it and
 * signal it. An opaque semaphore is 0 or 1, and a wait takes it; a timeline only grows. Graphs cannot use semaphores.
 */
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "cuda/work/watch.h"

enum { OPAQUE_FD = 1, TIMELINE_FD = 9, LAST_TYPE = 10, WORD = 8 };

typedef struct sim_semaphore *CUexternalSemaphore;

typedef struct {
	int type;
	union {
		int fd;
		const void *object[2];
	};
	unsigned flags, reserved[16];
} CUDA_EXTERNAL_SEMAPHORE_HANDLE_DESC;

/* For a signal and for a wait: both begin with the timeline's value. */
typedef struct {
	unsigned long long value, others[8];
	unsigned flags, reserved[16];
} CUDA_EXTERNAL_SEMAPHORE_PARAMS;

_Static_assert(sizeof(CUDA_EXTERNAL_SEMAPHORE_HANDLE_DESC) == 96 && sizeof(CUDA_EXTERNAL_SEMAPHORE_PARAMS) == 144,
	       "CUDA's structures");

/* The word outlives the handle while work refers to it. */
struct word {
	unsigned references; /* under the lock */
	uint64_t *at;
};

struct sim_semaphore {
	struct sim_object object;
	int type;
	struct word *word;
};

struct task {
	struct word *word;
	uint64_t value;
	bool takes; /* for an opaque semaphore */
};

static void drop_word(struct word *word)
{
	pthread_mutex_lock(&sim_driver.lock);
	bool last = !--word->references;
	pthread_mutex_unlock(&sim_driver.lock);
	if (!last)
		return;
	munmap(word->at, WORD);
	free(word);
}

static struct word *word_of_file(int fd)
{
	struct word *word = malloc(sizeof *word);

	if (!word)
		return NULL;
	word->references = 1;
	word->at = lseek(fd, 0, SEEK_END) >= WORD ? mmap(NULL, WORD, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0)
						  : MAP_FAILED;
	if (word->at != MAP_FAILED)
		return word;
	free(word);
	return NULL;
}

/* The driver owns the descriptor once the import has succeeded. */
static CUresult import_semaphore(CUexternalSemaphore *out, const CUDA_EXTERNAL_SEMAPHORE_HANDLE_DESC *p)
{
	struct word *word = word_of_file(p->fd);

	REJECT(!word);
	pthread_mutex_lock(&sim_driver.lock);
	*out = sim_object_create(sizeof **out, SIM_SEMAPHORE, NULL);
	if (*out) {
		(*out)->type = p->type;
		(*out)->word = word;
	}
	pthread_mutex_unlock(&sim_driver.lock);
	if (!*out) {
		drop_word(word);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	close(p->fd);
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuImportExternalSemaphore(CUexternalSemaphore *out, const CUDA_EXTERNAL_SEMAPHORE_HANDLE_DESC *p)
{
	struct sim_context *context;

	TRY(sim_context_current(&context));
	REJECT(!out || !p || p->flags || p->type < OPAQUE_FD || p->type > LAST_TYPE);
	return p->type == OPAQUE_FD || p->type == TIMELINE_FD ? import_semaphore(out, p) : CUDA_ERROR_NOT_SUPPORTED;
}

SIM_EXPORT CUresult cuDestroyExternalSemaphore(CUexternalSemaphore semaphore)
{
	TRY(sim_object_lock(semaphore, SIM_SEMAPHORE));
	struct word *word = semaphore->word;
	sim_object_destroy(semaphore);
	pthread_mutex_unlock(&sim_driver.lock);
	drop_word(word);
	return CUDA_SUCCESS;
}

static void signal_it(void *argument)
{
	struct task *task = argument;

	__atomic_store_n(task->word->at, task->takes ? 1 : task->value, __ATOMIC_RELEASE);
	drop_word(task->word);
	free(task);
}

static bool is_signalled(void *argument)
{
	const struct task *task = argument;
	uint64_t one = 1;
	bool met = task->takes ? __atomic_compare_exchange_n(task->word->at, &one, 0, false, __ATOMIC_ACQ_REL,
							     __ATOMIC_ACQUIRE)
			       : __atomic_load_n(task->word->at, __ATOMIC_ACQUIRE) >= task->value;

	if (met)
		drop_word(task->word);
	return met;
}

static CUresult task_of(CUexternalSemaphore semaphore, const CUDA_EXTERNAL_SEMAPHORE_PARAMS *p, struct task **task)
{
	TRY(p->flags ? CUDA_ERROR_INVALID_VALUE : sim_object_lock(semaphore, SIM_SEMAPHORE));
	*task = malloc(sizeof **task);
	if (*task) {
		**task = (struct task){semaphore->word, p->value, semaphore->type == OPAQUE_FD};
		semaphore->word->references++;
	}
	return sim_object_unlock(*task ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY);
}

static CUresult submit_task(CUstream stream, struct task *task, bool waits)
{
	struct sim_work work = {.type = CU_GRAPH_NODE_TYPE_HOST, .host = {.function = signal_it, .argument = task}};
	struct word *word = task->word;
	CUresult result = waits ? sim_watch(stream, is_signalled, task) : sim_queue_submit(stream, &work, false);

	if (result == CUDA_SUCCESS)
		return result;
	drop_word(word);
	if (!waits) /* sim_watch frees the argument of a wait */
		free(task);
	return result;
}

static CUresult submit_tasks(const CUexternalSemaphore *list, const CUDA_EXTERNAL_SEMAPHORE_PARAMS *p, unsigned count,
			     CUstream stream, bool waits)
{
	struct task *task;
	int capturing;
	CUresult result = list && p && count ? cuStreamIsCapturing(stream, &capturing) : CUDA_ERROR_INVALID_VALUE;

	if (result == CUDA_SUCCESS && capturing)
		result = CUDA_ERROR_NOT_SUPPORTED;
	for (unsigned i = 0; result == CUDA_SUCCESS && i < count; i++) {
		result = task_of(list[i], &p[i], &task);
		if (result == CUDA_SUCCESS)
			result = submit_task(stream, task, waits);
	}
	return result;
}

SIM_EXPORT CUresult cuSignalExternalSemaphoresAsync(const CUexternalSemaphore *list,
						    const CUDA_EXTERNAL_SEMAPHORE_PARAMS *p, unsigned count,
						    CUstream stream)
{
	return submit_tasks(list, p, count, stream, false);
}

SIM_EXPORT CUresult cuWaitExternalSemaphoresAsync(const CUexternalSemaphore *list,
						  const CUDA_EXTERNAL_SEMAPHORE_PARAMS *p, unsigned count,
						  CUstream stream)
{
	return submit_tasks(list, p, count, stream, true);
}
