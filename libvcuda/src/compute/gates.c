/* See compute/gates.h. */
#include "compute/gates.h"

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
	if (!context->gate_words) {
		void *page = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
		if (page == MAP_FAILED)
			return false;
		context->gate_words = page;
	}
	CUstreamCaptureMode mode = stream_capture_relax();
	bool is_done =
		REAL(cuMemHostRegister_v2, context->gate_words, PAGE,
		     CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP) == CUDA_SUCCESS &&
		REAL(cuMemHostGetDevicePointer_v2, &context->gate_address, context->gate_words, 0) == CUDA_SUCCESS;
	stream_capture_restore(mode);
	return is_done;
}

static uint32_t *word_of(const struct compute_context *context, const struct stream_slot *slot)
{
	return &context->gate_words[slot - context->slots];
}

uint32_t gates_put(struct compute_context *context, struct stream_slot *slot, CUstream stream)
{
	if (!context->gate_address && !register_words(context))
		context->has_no_gates = true;
	if (context->has_no_gates)
		return 0;
	uint32_t gate = slot->gates + 1 ? slot->gates + 1 : 1;
	CUdeviceptr address = context->gate_address + (CUdeviceptr)(slot - context->slots) * sizeof(uint32_t);
	context->has_no_gates =
		REAL(cuStreamWaitValue32_v2, stream, address, gate, CU_STREAM_WAIT_VALUE_GEQ) != CUDA_SUCCESS;
	if (context->has_no_gates)
		return 0;
	STORE(slot->gates, gate);
	return gate;
}

void gates_open(struct compute_context *context, const struct stream_slot *slot, uint32_t gate)
{
	__atomic_store_n(word_of(context, slot), gate, __ATOMIC_RELEASE);
}

void gates_open_in(struct compute_context *context)
{
	for (int i = 0; context->gate_words && i < STREAM_SLOTS; i++)
		gates_open(context, &context->slots[i], LOAD(context->slots[i].gates));
}

void gates_open_all(void)
{
	for (int i = 0; i < MOST_CONTEXTS && atomic_load(&contexts[i]); i++)
		gates_open_in(atomic_load(&contexts[i]));
}
