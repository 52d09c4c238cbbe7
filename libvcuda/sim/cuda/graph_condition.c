/*
 * Conditional nodes of graphs and their handles. On a real card a kernel decides while the graph runs; here kernels
 * compute nothing, so a handle keeps its default value, or 0 if the default is not to be assigned at each launch. What
 * runs is therefore known when the graph is instantiated, and a loop whose value is not 0 runs once.
 */
#include <stdlib.h>

#include "cuda/graph.h"

#define NODE CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count

enum { IF, WHILE, SWITCH };
enum { ASSIGN_DEFAULT = 1, MOST_BODIES = 1 << 16 };

struct sim_condition {
	struct sim_object object;
	struct sim_condition *next; /* the next one of the same graph */
	unsigned value;
	bool is_used;               /* a handle belongs to one node only */
};

struct sim_choice {
	int type;
	unsigned value, size;
	struct sim_graph *bodies[];
};

CUresult sim_graph_condition_choice_add(NODE, CUDA_CONDITIONAL_NODE_PARAMS *p);

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

void sim_graph_condition_drop_all(struct sim_graph *graph)
{
	while (graph->conditions) {
		struct sim_condition *condition = graph->conditions;
		graph->conditions = condition->next;
		sim_object_destroy(condition);
	}
}

struct sim_graph *sim_graph_condition_runs(const struct sim_node *node)
{
	const struct sim_choice *choice = node->choice;

	if (!choice)
		return node->child;
	unsigned which = choice->type == SWITCH ? choice->value : !choice->value;
	return which < choice->size ? choice->bodies[which] : NULL;
}

void sim_graph_condition_choice_drop(struct sim_node *node)
{
	for (unsigned i = 0; node->choice && i < node->choice->size; i++)
		if (node->choice->bodies[i])
			sim_graph_free(node->choice->bodies[i]);
	free(node->choice);
	node->choice = NULL;
}

static struct sim_choice *choice_new(int type, unsigned value, unsigned size)
{
	struct sim_choice *choice = calloc(1, sizeof *choice + size * sizeof *choice->bodies);

	if (choice)
		*choice = (struct sim_choice){.type = type, .value = value, .size = size};
	return choice;
}

static CUresult keep_body(struct sim_graph *body)
{
	if (!body)
		return CUDA_ERROR_OUT_OF_MEMORY;
	body->is_child = body->is_body = true;
	return CUDA_SUCCESS;
}

CUresult sim_graph_condition_choice_clone(struct sim_node *node, const struct sim_node *original)
{
	const struct sim_choice *from = original->choice;
	CUresult result = CUDA_SUCCESS;

	node->choice = choice_new(from->type, from->value, from->size);
	if (!node->choice)
		return CUDA_ERROR_OUT_OF_MEMORY;
	for (unsigned i = 0; result == CUDA_SUCCESS && i < from->size; i++) {
		result = sim_graph_clone(&node->choice->bodies[i], from->bodies[i]);
		if (result == CUDA_SUCCESS)
			result = keep_body(node->choice->bodies[i]);
	}
	return result;
}

/* Made before the node, so that a failure leaves no partial node. Under the lock. */
static struct sim_choice *make_choice(const CUDA_CONDITIONAL_NODE_PARAMS *p)
{
	struct sim_node holder = {.choice = choice_new(p->type, p->handle->value, p->size)};

	for (unsigned i = 0; holder.choice && i < p->size; i++) {
		holder.choice->bodies[i] = sim_graph_new();
		if (keep_body(holder.choice->bodies[i]) != CUDA_SUCCESS)
			sim_graph_condition_choice_drop(&holder);
	}
	return holder.choice;
}

static bool is_sound(const CUDA_CONDITIONAL_NODE_PARAMS *p)
{
	unsigned most = p->type == IF ? 2 : p->type == WHILE ? 1 : MOST_BODIES;

	return p->type >= IF && p->type <= SWITCH && p->size && p->size <= most && sim_object_is(p->handle, SIM_CONDITION) &&
	       !p->handle->is_used;
}

CUresult sim_graph_condition_choice_add(NODE, CUDA_CONDITIONAL_NODE_PARAMS *p)
{
	const struct sim_work work = {.type = CU_GRAPH_NODE_TYPE_CONDITIONAL};
	CUresult result = sim_graph_lock(graph, dependencies, count, node);

	if (result != CUDA_SUCCESS)
		return result;
	struct sim_node holder = {.choice = is_sound(p) ? make_choice(p) : NULL};
	if (!is_sound(p))
		result = CUDA_ERROR_INVALID_VALUE;
	else
		result = holder.choice ? sim_graph_add(graph, dependencies, count, &work, node) : CUDA_ERROR_OUT_OF_MEMORY;
	if (result == CUDA_SUCCESS) {
		(*node)->choice = holder.choice;
		p->phGraph_out = holder.choice->bodies;
		p->handle->is_used = true;
	} else {
		sim_graph_condition_choice_drop(&holder);
	}
	return sim_object_unlock(result);
}
