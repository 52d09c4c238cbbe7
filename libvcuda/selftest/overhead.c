#include "launch.h"
#include "overhead.h"
#include "protocol.h"

#define STACK_SIZE 0 /* CU_LIMIT_STACK_SIZE */

void overhead_contexts(void)
{
	uint64_t wanted = protocol_number("N"), made = 0;
	CUcontext context;
	CUresult result = CUDA_SUCCESS;

	for (; made < wanted && !result; made += !result) {
		result = cu.cuCtxCreate_v2(&context, 0, driver_card.device);
		if (!result)
			cu.cuCtxPopCurrent_v2(&context);
	}
	protocol_begin();
	protocol_add("code", result);
	protocol_add("made", made);
	protocol_end();
}

void overhead_streams(void)
{
	uint64_t wanted = protocol_number("N");
	CUstream stream;
	CUresult result = CUDA_SUCCESS;

	for (uint64_t made = 0; made < wanted && !result; made++)
		result = cu.cuStreamCreate(&stream, 1);
	protocol_code(result);
}

void overhead_graph(void)
{
	CUgraphExec executable;

	protocol_code(launch_graph_of(protocol_number("N"), 1000, &executable));
}

/* Bytes of stack for each thread. */
void overhead_stack(void)
{
	protocol_code(cu.cuCtxSetLimit(STACK_SIZE, protocol_number("N")));
}

/* The first launch of a function: code that is loaded only then. */
void overhead_launch(void)
{
	CUresult result = launch_kernel(1000);

	protocol_code(result ? result : cu.cuStreamSynchronize(driver_card.stream));
}
