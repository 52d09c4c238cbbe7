/*
 * Conditional nodes of graphs and their handles. On a real card a kernel decides while the graph runs; here kernels
 * compute nothing, so a handle keeps its default value, or 0 if the default is not to be assigned at each launch. What
 * runs is therefore known when the graph is instantiated, and a loop whose value is not 0 runs once.
 */
#include "cuda/graph/graph.h"

#define NODE CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count

enum { IF, WHILE, SWITCH };
enum { ASSIGN_DEFAULT = 1, MOST_BODIES = 1 << 16 };

CUresult sim_graph_condition_add(NODE, CUDA_CONDITIONAL_NODE_PARAMS *p);

SIM_EXPORT CUresult cuGraphConditionalHandleCreate(struct sim_condition **out, CUgraph graph, CUcontext context,
						   unsigned value, unsigned flags)
{
	TRY(out && !(flags & ~(unsigned)ASSIGN_DEFAULT) ? sim_init_ready() : CUDA_ERROR_INVALID_VALUE);
	if (context)
		TRY(sim_context_check(context));
	TRY(sim_graph_lock(graph, NULL, 0, out));
	*out = sim_object_create(sizeof **out, SIM_CONDITION, NULL);
	if (*out) {
		(*out)->value = flags & ASSIGN_DEFAULT ? value : 0;
		(*out)->next = graph->conditions;
		graph->conditions = *out;
	}
	return sim_object_unlock(*out ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY);
}

struct sim_graph *sim_graph_condition_runs(const struct sim_node *node)
{
	const struct sim_choice *choice = node->choice;

	if (!choice)
		return node->child;
	unsigned which = choice->type == SWITCH ? choice->value : !choice->value;
	return which < choice->size ? choice->bodies[which] : NULL;
}

static bool is_sound(const CUDA_CONDITIONAL_NODE_PARAMS *p)
{
	unsigned most = p->type == IF ? 2 : p->type == WHILE ? 1 : MOST_BODIES;

	return p->type >= IF && p->type <= SWITCH && p->size && p->size <= most &&
	       sim_object_is(p->handle, SIM_CONDITION) && !p->handle->is_used;
}

CUresult sim_graph_condition_add(NODE, CUDA_CONDITIONAL_NODE_PARAMS *p)
{
	const struct sim_work work = {.type = CU_GRAPH_NODE_TYPE_CONDITIONAL};

	TRY(sim_graph_lock(graph, dependencies, count, node));
	if (!is_sound(p))
		return sim_object_unlock(CUDA_ERROR_INVALID_VALUE);
	/* Made before the node, so that a failure leaves no partial node. */
	struct sim_choice *choice = sim_graph_choice_new(p->type, p->handle->value, p->size);
	CUresult result = choice ? sim_graph_add(graph, dependencies, count, &work, node) : CUDA_ERROR_OUT_OF_MEMORY;
	if (result == CUDA_SUCCESS) {
		(*node)->choice = choice;
		p->phGraph_out = choice->bodies;
		p->handle->is_used = true;
	} else {
		sim_graph_choice_free(choice);
	}
	return sim_object_unlock(result);
}
