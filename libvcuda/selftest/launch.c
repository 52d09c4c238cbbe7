#include "launch.h"

CUresult launch_kernel(uint64_t ns)
{
	void *arguments[] = {&ns, &driver_card.gap};

	return cu.cuLaunchKernel(driver_card.spin, 1, 1, 1, 32, 1, 1, 0, driver_card.stream, arguments, NULL);
}

CUresult launch_graph_of(uint64_t nodes, uint64_t ns, CUgraphExec *executable)
{
	CUgraph graph;
	CUresult result = cu.cuStreamBeginCapture_v2(driver_card.stream, CU_STREAM_CAPTURE_MODE_RELAXED);

	if (result)
		return result;
	for (uint64_t i = 0; i < nodes && !result; i++)
		result = launch_kernel(ns);
	CUresult ended = cu.cuStreamEndCapture(driver_card.stream, &graph);
	if (result || ended)
		return result ? result : ended;
	result = cu.cuGraphInstantiateWithFlags(executable, graph, 0);
	cu.cuGraphDestroy(graph);
	return result;
}
