/* See compute/semaphores.h. */
#include "compute/semaphores.h"

#include <sys/mman.h>

#include "base/atomics.h"
#include "driver/cuda_table.h"
#include "driver/stream_capture.h"

enum { PAGE = 4096 };

/*
 * Memory of this process and not of the driver, so that a word can be written whatever becomes of the context. It is
 * shared: after a fork a private page would be copied at the next write, and the card would go on reading the old one.
 */
static bool register_words(struct compute_context *context)
{
	if (!context->semaphores) {
		void *page = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
		if (page == MAP_FAILED)
			return false;
		context->semaphores = page;
	}
	CUstreamCaptureMode mode = stream_capture_relax();
	bool is_done =
		REAL(cuMemHostRegister_v2, context->semaphores, PAGE,
		     CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP) == CUDA_SUCCESS &&
		REAL(cuMemHostGetDevicePointer_v2, &context->semaphores_at, context->semaphores, 0) == CUDA_SUCCESS;
	stream_capture_restore(mode);
	return is_done;
}

static uint32_t *word_of(const struct compute_context *context, const struct stream_slot *slot)
{
	return &context->semaphores[slot - context->slots];
}

uint32_t semaphores_acquire(struct compute_context *context, struct stream_slot *slot, CUstream stream)
{
	if (!context->semaphores_at && !register_words(context))
		context->has_no_semaphores = true;
	if (context->has_no_semaphores)
		return 0;
	uint32_t value = slot->acquired + 1 ? slot->acquired + 1 : 1;
	CUdeviceptr address = context->semaphores_at + (CUdeviceptr)(slot - context->slots) * sizeof(uint32_t);
	context->has_no_semaphores =
		REAL(cuStreamWaitValue32_v2, stream, address, value, CU_STREAM_WAIT_VALUE_GEQ) != CUDA_SUCCESS;
	if (context->has_no_semaphores)
		return 0;
	STORE(slot->acquired, value);
	return value;
}

void semaphores_release(struct compute_context *context, const struct stream_slot *slot, uint32_t value)
{
	__atomic_store_n(word_of(context, slot), value, __ATOMIC_RELEASE);
}

void semaphores_release_context(struct compute_context *context)
{
	for (int i = 0; context->semaphores && i < STREAM_SLOTS; i++)
		semaphores_release(context, &context->slots[i], LOAD(context->slots[i].acquired));
}

void semaphores_release_all(void)
{
	for (int i = 0; i < MOST_CONTEXTS && atomic_load(&contexts[i]); i++)
		semaphores_release_context(atomic_load(&contexts[i]));
}
