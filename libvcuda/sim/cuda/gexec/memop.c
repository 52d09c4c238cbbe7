/*
 * Stream memory operations: checking a batch, keeping it for graphs, waiting for a value and writing one. The waiting
 * itself is in cuda/work/watch.c.
 */
#include "cuda/memory/allocation.h"
#include "cuda/gexec/graph_nodes.h"
#include "cuda/gexec/memop.h"
#include "cuda/work/watch.h"

#include <stdlib.h>
#include <string.h>

#define MOST_IN_A_BATCH 256u

enum { WAIT_32 = 1, WRITE_32, FLUSH_REMOTE_WRITES, WAIT_64, WRITE_64, BARRIER };
enum { AT_LEAST, EQUAL, AND, NOR, WAIT_KINDS = 3, WAIT_FLUSH = 1 << 30 };

struct word {
	CUdeviceptr address;
	bool is_long;
	unsigned kind; /* kind of comparison */
	uint64_t value;
};

static struct sim_memops *batches;

static struct sim_allocation *allocation_of(const struct word *word)
{
	size_t bytes = word->is_long ? 8 : 4;

	return word->address % bytes ? NULL : sim_allocation_at(word->address, bytes);
}

/* The word in memory of this process; NULL: there is none, or it was freed. Under the lock. */
static void *locate_word(const struct word *word)
{
	struct sim_allocation *allocation = allocation_of(word);
	char *backing = allocation ? sim_allocation_backing(allocation) : NULL;

	return backing ? backing + (word->address - allocation->base) : NULL;
}

static bool compare_32(uint32_t have, uint32_t want, unsigned kind)
{
	switch (kind) {
	case AT_LEAST: return (int32_t)(have - want) >= 0;
	case EQUAL: return have == want;
	case AND: return (have & want) != 0;
	default: return ~(have | want) != 0;
	}
}

static bool compare_64(uint64_t have, uint64_t want, unsigned kind)
{
	switch (kind) {
	case AT_LEAST: return (int64_t)(have - want) >= 0;
	case EQUAL: return have == want;
	case AND: return (have & want) != 0;
	default: return ~(have | want) != 0;
	}
}

/* A stream does not wait for memory that was freed, or that a thread is freeing while it waits for this stream. */
static bool has_value(void *argument)
{
	const struct word *word = argument;
	bool met = true;

	pthread_mutex_lock(&sim_driver.lock);
	const struct sim_allocation *allocation = allocation_of(word);
	void *at = allocation && !allocation->is_ending ? locate_word(word) : NULL;
	if (at && word->is_long)
		met = compare_64(__atomic_load_n((uint64_t *)at, __ATOMIC_ACQUIRE), word->value, word->kind);
	else if (at)
		met = compare_32(__atomic_load_n((uint32_t *)at, __ATOMIC_ACQUIRE), (uint32_t)word->value, word->kind);
	pthread_mutex_unlock(&sim_driver.lock);
	return met;
}

static void write_value(void *argument)
{
	struct word *word = argument;

	pthread_mutex_lock(&sim_driver.lock);
	void *at = locate_word(word);
	if (at && word->is_long)
		__atomic_store_n((uint64_t *)at, word->value, __ATOMIC_RELEASE);
	else if (at)
		__atomic_store_n((uint32_t *)at, (uint32_t)word->value, __ATOMIC_RELEASE);
	pthread_mutex_unlock(&sim_driver.lock);
	free(word);
}

static bool is_wait(const CUstreamBatchMemOpParams *operation)
{
	return operation->operation == WAIT_32 || operation->operation == WAIT_64;
}

static struct word word_of_operation(const CUstreamBatchMemOpParams *p)
{
	return (struct word){
		.address = p->value.address,
		.is_long = p->operation == WAIT_64 || p->operation == WRITE_64,
		.kind = p->value.flags & WAIT_KINDS,
		.value = p->value.value,
	};
}

static CUresult check_operation(const CUstreamBatchMemOpParams *p)
{
	unsigned known = is_wait(p) ? WAIT_KINDS | WAIT_FLUSH : 1;

	switch (p->operation) {
	case FLUSH_REMOTE_WRITES: return CUDA_ERROR_NOT_SUPPORTED;
	case BARRIER: return p->barrier.flags <= 1 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
	case WAIT_32:
	case WAIT_64:
	case WRITE_32:
	case WRITE_64: break;
	default: return CUDA_ERROR_INVALID_VALUE;
	}
	REJECT(p->value.flags & ~known);
	if (is_wait(p) && p->value.flags & WAIT_FLUSH)
		return CUDA_ERROR_NOT_SUPPORTED;
	return p->value.address % (p->operation == WAIT_32 || p->operation == WRITE_32 ? 4 : 8)
		       ? CUDA_ERROR_INVALID_VALUE
		       : CUDA_SUCCESS;
}

static CUresult check_all(const CUstreamBatchMemOpParams *list, unsigned count, unsigned flags)
{
	CUresult result = list && count && count <= MOST_IN_A_BATCH && !flags ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;

	for (unsigned i = 0; result == CUDA_SUCCESS && i < count; i++)
		result = check_operation(&list[i]);
	return result;
}

/* Only memory of a batch that is submitted at once must exist now: a graph's may belong to an allocation node. */
static CUresult check_memory(const CUstreamBatchMemOpParams *list, unsigned count)
{
	CUresult result = CUDA_SUCCESS;

	pthread_mutex_lock(&sim_driver.lock);
	for (unsigned i = 0; i < count; i++) {
		struct word word = word_of_operation(&list[i]);
		if (list[i].operation != BARRIER && !locate_word(&word))
			result = CUDA_ERROR_INVALID_VALUE;
	}
	return sim_object_unlock(result);
}

static CUresult submit_one(CUstream stream, const CUstreamBatchMemOpParams *p)
{
	struct sim_work work = {.type = CU_GRAPH_NODE_TYPE_HOST, .host = {.function = write_value, .by_card = true}};
	struct word *word = malloc(sizeof *word);

	if (!word)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*word = word_of_operation(p);
	if (is_wait(p))
		return sim_watch(stream, has_value, word);
	work.host.argument = word;
	CUresult result = sim_queue_submit(stream, &work, false);
	if (result != CUDA_SUCCESS)
		free(word);
	return result;
}

static CUresult submit_operations(CUstream stream, const CUstreamBatchMemOpParams *list, unsigned count)
{
	CUresult result = CUDA_SUCCESS;

	for (unsigned i = 0; result == CUDA_SUCCESS && i < count; i++)
		if (list[i].operation != BARRIER)
			result = submit_one(stream, &list[i]);
	return result;
}

/* The batch as it is kept. Under the lock. */
static const struct sim_memops *keep_batch(const CUstreamBatchMemOpParams *list, unsigned count)
{
	size_t bytes = count * sizeof *list;

	for (struct sim_memops *at = batches; at; at = at->next)
		if (at->count == count && memcmp(at->list, list, bytes) == 0)
			return at;
	struct sim_memops *batch = malloc(sizeof *batch + bytes);
	if (!batch)
		return NULL;
	batch->next = batches;
	batch->count = count;
	memcpy(batch->list, list, bytes);
	return batches = batch;
}

static CUresult batch_from(const CUstreamBatchMemOpParams *list, unsigned count, unsigned flags, struct sim_work *work)
{
	TRY(check_all(list, count, flags));
	pthread_mutex_lock(&sim_driver.lock);
	*work = (struct sim_work){.type = CU_GRAPH_NODE_TYPE_BATCH_MEM_OP, .memops = keep_batch(list, count)};
	return sim_object_unlock(work->memops ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY);
}

static CUresult submit_batch(CUstream stream, const CUstreamBatchMemOpParams *list, unsigned count, unsigned flags)
{
	struct sim_work work;
	int capturing;
	CUresult result = cuStreamIsCapturing(stream, &capturing);

	if (result == CUDA_SUCCESS)
		result = check_all(list, count, flags);
	if (result == CUDA_SUCCESS && capturing) {
		result = batch_from(list, count, flags, &work);
		return result == CUDA_SUCCESS ? sim_queue_submit(stream, &work, false) : result;
	}
	if (result == CUDA_SUCCESS)
		result = check_memory(list, count);
	return result == CUDA_SUCCESS ? submit_operations(stream, list, count) : result;
}

CUresult sim_memop_submit(CUstream stream, const struct sim_memops *batch)
{
	return submit_batch(stream, batch->list, batch->count, 0);
}

SIM_EXPORT CUresult cuStreamBatchMemOp_v2(CUstream stream, unsigned count, CUstreamBatchMemOpParams *list,
					  unsigned flags)
{
	return submit_batch(stream, list, count, flags);
}

static CUresult submit_value(CUstream stream, int operation, CUdeviceptr address, uint64_t value, unsigned flags)
{
	CUstreamBatchMemOpParams p;

	memset(&p, 0, sizeof p);
	p.operation = operation;
	p.value.address = address;
	p.value.value = value;
	p.value.flags = flags;
	return submit_batch(stream, &p, 1, 0);
}

SIM_EXPORT CUresult cuStreamWaitValue32_v2(CUstream stream, CUdeviceptr address, uint32_t value, unsigned flags)
{
	return submit_value(stream, WAIT_32, address, value, flags);
}

SIM_EXPORT CUresult cuStreamWaitValue64_v2(CUstream stream, CUdeviceptr address, uint64_t value, unsigned flags)
{
	return submit_value(stream, WAIT_64, address, value, flags);
}

SIM_EXPORT CUresult cuStreamWriteValue32_v2(CUstream stream, CUdeviceptr address, uint32_t value, unsigned flags)
{
	return submit_value(stream, WRITE_32, address, value, flags);
}

SIM_EXPORT CUresult cuStreamWriteValue64_v2(CUstream stream, CUdeviceptr address, uint64_t value, unsigned flags)
{
	return submit_value(stream, WRITE_64, address, value, flags);
}
