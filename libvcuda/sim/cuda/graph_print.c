/*
 * Writes a graph as text for graphviz (cuGraphDebugDotPrint). Flags may ask for details; those that the simulator has
 * are printed. The graphs themselves are in cuda/graph.c.
 */
#include <stdio.h>

#include "cuda/graph.h"
#include "cuda/module.h"

static const char *const types[] = {
	[CU_GRAPH_NODE_TYPE_KERNEL] = "KERNEL", [CU_GRAPH_NODE_TYPE_MEMCPY] = "MEMCPY",
	[CU_GRAPH_NODE_TYPE_MEMSET] = "MEMSET", [CU_GRAPH_NODE_TYPE_HOST] = "HOST",
	[CU_GRAPH_NODE_TYPE_GRAPH] = "GRAPH", [CU_GRAPH_NODE_TYPE_EMPTY] = "EMPTY",
	[CU_GRAPH_NODE_TYPE_WAIT_EVENT] = "EVENT_WAIT", [CU_GRAPH_NODE_TYPE_EVENT_RECORD] = "EVENT_RECORD",
	[CU_GRAPH_NODE_TYPE_MEM_ALLOC] = "MEM_ALLOC", [CU_GRAPH_NODE_TYPE_MEM_FREE] = "MEM_FREE",
	[CU_GRAPH_NODE_TYPE_BATCH_MEM_OP] = "BATCH_MEM_OP",
	[CU_GRAPH_NODE_TYPE_CONDITIONAL] = "CONDITIONAL",
};

static void print_label(FILE *file, const struct sim_node *node)
{
	const struct sim_work *work = &node->work;

	fprintf(file, "%s", types[work->type]);
	switch (work->type) {
	case CU_GRAPH_NODE_TYPE_KERNEL:
		if (sim_object_is(work->launch.function, SIM_FUNCTION))
			fprintf(file, "\\n%s", work->launch.function->name);
		fprintf(file, "\\ngrid %ux%ux%u block %ux%ux%u", work->launch.grid[0], work->launch.grid[1],
		        work->launch.grid[2], work->launch.block[0], work->launch.block[1], work->launch.block[2]);
		break;
	case CU_GRAPH_NODE_TYPE_MEMCPY:
		fprintf(file, "\\n%zux%zux%zu bytes", work->copy.width, work->copy.height, work->copy.depth);
		break;
	case CU_GRAPH_NODE_TYPE_MEM_ALLOC: fprintf(file, "\\n%zu bytes", work->memory.bytes); break;
	default: break;
	}
}

static void print_graph(FILE *file, const struct sim_graph *graph, unsigned *clusters)
{
	fprintf(file, "subgraph cluster_%u {\nlabel=\"graph_%u\"\n", *clusters, *clusters);
	*clusters += 1;
	for (size_t i = 0; i < graph->count; i++) {
		fprintf(file, "\"%p\" [shape=box label=\"", (void *)graph->nodes[i]);
		print_label(file, graph->nodes[i]);
		fprintf(file, "\"]\n");
	}
	for (size_t i = 0; i < graph->count; i++)
		for (size_t j = 0; j < graph->nodes[i]->dependency_count; j++)
			fprintf(file, "\"%p\" -> \"%p\"\n", (void *)graph->nodes[i]->dependencies[j], (void *)graph->nodes[i]);
	fprintf(file, "}\n");
	for (size_t i = 0; i < graph->count; i++)
		if (graph->nodes[i]->child)
			print_graph(file, graph->nodes[i]->child, clusters);
}

SIM_EXPORT CUresult cuGraphDebugDotPrint(CUgraph graph, const char *path, unsigned flags)
{
	unsigned clusters = 0;

	(void)flags;
	TRY(sim_graph_lock(graph, NULL, 0, path));
	FILE *file = fopen(path, "we");
	if (file) {
		fprintf(file, "digraph dot {\n");
		print_graph(file, graph, &clusters);
		fprintf(file, "}\n");
	}
	bool written = file && !ferror(file);
	if (file && fclose(file) != 0)
		written = false;
	return sim_object_unlock(written ? CUDA_SUCCESS : CUDA_ERROR_OPERATING_SYSTEM);
}
