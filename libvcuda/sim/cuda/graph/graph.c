/*
 * Graphs and their edges: creating, cloning, destroying, listing and adding dependencies. Nodes by kind are
 * in cuda/gexec/graph_nodes.c, what runs in cuda/graph/graph_plan.c and cuda/gexec/graph_exec.c.
 */
#include <stdlib.h>
#include <string.h>

#include "cuda/graph/graph.h"

struct sim_graph *sim_graph_new(void)
{
	return sim_object_create(sizeof(struct sim_graph), SIM_GRAPH, NULL);
}

void sim_graph_choice_free(struct sim_choice *choice)
{
	for (unsigned i = 0; choice && i < choice->size; i++)
		if (choice->bodies[i])
			sim_graph_free(choice->bodies[i]);
	free(choice);
}

static struct sim_choice *allocate_choice(int type, unsigned value, unsigned size)
{
	struct sim_choice *choice = calloc(1, sizeof *choice + size * sizeof *choice->bodies);

	if (choice)
		*choice = (struct sim_choice){.type = type, .value = value, .size = size};
	return choice;
}

static void keep_body(struct sim_graph *body)
{
	body->is_child = body->is_body = true;
}

struct sim_choice *sim_graph_choice_new(int type, unsigned value, unsigned size)
{
	struct sim_choice *choice = allocate_choice(type, value, size);

	for (unsigned i = 0; choice && i < size; i++) {
		choice->bodies[i] = sim_graph_new();
		if (choice->bodies[i]) {
			keep_body(choice->bodies[i]);
			continue;
		}
		sim_graph_choice_free(choice);
		return NULL;
	}
	return choice;
}

static void free_node(struct sim_node *node)
{
	if (node->child)
		sim_graph_free(node->child);
	sim_graph_choice_free(node->choice);
	free(node->dependencies);
	sim_object_destroy(node);
}

void sim_graph_free(struct sim_graph *graph)
{
	for (size_t i = 0; i < graph->count; i++)
		free_node(graph->nodes[i]);
	free(graph->nodes);
	while (graph->conditions) {
		struct sim_condition *condition = graph->conditions;
		graph->conditions = condition->next;
		sim_object_destroy(condition);
	}
	sim_object_destroy(graph);
}

static bool has_room(struct sim_graph *graph)
{
	if (graph->count < graph->room)
		return true;
	size_t room = graph->room ? graph->room * 2 : 16;
	struct sim_node **nodes = reallocarray(graph->nodes, room, sizeof(struct sim_node *));
	if (!nodes)
		return false;
	graph->nodes = nodes;
	graph->room = room;
	return true;
}

static bool depend(struct sim_node *node, const CUgraphNode *on, size_t count)
{
	size_t total = node->dependency_count + count;
	struct sim_node **list = count ? reallocarray(node->dependencies, total, sizeof(struct sim_node *)) : NULL;

	if (count && !list)
		return false;
	if (count) {
		memcpy(list + node->dependency_count, on, count * sizeof(struct sim_node *));
		node->dependencies = list;
		node->dependency_count = total;
	}
	return true;
}

static bool may_be_in_a_body(int type)
{
	return type == CU_GRAPH_NODE_TYPE_KERNEL || type == CU_GRAPH_NODE_TYPE_MEMCPY ||
	       type == CU_GRAPH_NODE_TYPE_MEMSET || type == CU_GRAPH_NODE_TYPE_GRAPH ||
	       type == CU_GRAPH_NODE_TYPE_EMPTY || type == CU_GRAPH_NODE_TYPE_CONDITIONAL;
}

CUresult sim_graph_add(struct sim_graph *graph, const CUgraphNode *dependencies, size_t count,
		       const struct sim_work *work, struct sim_node **out)
{
	if (graph->is_body && !may_be_in_a_body(work->type))
		return CUDA_ERROR_NOT_SUPPORTED;
	struct sim_node *node = has_room(graph) ? sim_object_create(sizeof *node, SIM_NODE, NULL) : NULL;

	if (!node)
		return CUDA_ERROR_OUT_OF_MEMORY;
	node->graph = graph;
	node->work = *work;
	if (!depend(node, dependencies, count)) {
		sim_object_destroy(node);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	graph->nodes[graph->count++] = node;
	*out = node;
	return CUDA_SUCCESS;
}

CUresult sim_graph_lock(CUgraph graph, const CUgraphNode *dependencies, size_t count, const void *out)
{
	REJECT(!out || (count && !dependencies));
	CUresult result = sim_object_lock(graph, SIM_GRAPH);
	for (size_t i = 0; result == CUDA_SUCCESS && i < count; i++) {
		if (sim_object_is(dependencies[i], SIM_NODE) && dependencies[i]->graph == graph)
			continue;
		return sim_object_unlock(CUDA_ERROR_INVALID_VALUE);
	}
	return result == CUDA_ERROR_INVALID_HANDLE ? CUDA_ERROR_INVALID_VALUE : result;
}

CUresult sim_graph_lock_node(CUgraphNode node, int type)
{
	CUresult result = sim_object_lock(node, SIM_NODE);

	if (result == CUDA_SUCCESS && type >= 0 && node->work.type != type) {
		return sim_object_unlock(CUDA_ERROR_INVALID_VALUE);
	}
	return result == CUDA_ERROR_INVALID_HANDLE ? CUDA_ERROR_INVALID_VALUE : result;
}

SIM_EXPORT CUresult cuGraphCreate(CUgraph *graph, unsigned flags)
{
	TRY(sim_init_ready());
	REJECT(!graph || flags);
	pthread_mutex_lock(&sim_driver.lock);
	*graph = sim_graph_new();
	return sim_object_unlock(*graph ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY);
}

SIM_EXPORT CUresult cuGraphDestroy(CUgraph graph)
{
	TRY(sim_graph_lock(graph, NULL, 0, &graph));
	if (graph->is_child)
		return sim_object_unlock(CUDA_ERROR_INVALID_VALUE);
	sim_graph_free(graph);
	return sim_object_unlock(CUDA_SUCCESS);
}

static struct sim_node *copy_of(const struct sim_graph *graph, const struct sim_node *original)
{
	for (size_t i = 0; i < graph->count; i++)
		if (graph->nodes[i]->original == original)
			return graph->nodes[i];
	return NULL;
}

static CUresult clone_choice(struct sim_node *node, const struct sim_choice *from)
{
	node->choice = allocate_choice(from->type, from->value, from->size);
	if (!node->choice)
		return CUDA_ERROR_OUT_OF_MEMORY;
	for (unsigned i = 0; i < from->size; i++) {
		TRY(sim_graph_clone(&node->choice->bodies[i], from->bodies[i]));
		keep_body(node->choice->bodies[i]);
	}
	return CUDA_SUCCESS;
}

static CUresult clone_node(struct sim_graph *graph, struct sim_node *original)
{
	struct sim_node *node;

	TRY(sim_graph_add(graph, NULL, 0, &original->work, &node));
	node->original = original;
	for (size_t i = 0; i < original->dependency_count; i++) {
		CUgraphNode on = copy_of(graph, original->dependencies[i]);
		if (on && !depend(node, &on, 1))
			return CUDA_ERROR_OUT_OF_MEMORY;
	}
	if (original->choice)
		return clone_choice(node, original->choice);
	if (!original->child)
		return CUDA_SUCCESS;
	CUresult result = sim_graph_clone(&node->child, original->child);
	if (node->child)
		node->child->is_child = true;
	return result;
}

CUresult sim_graph_clone(struct sim_graph **out, struct sim_graph *original)
{
	struct sim_graph *graph = sim_graph_new();
	CUresult result = graph ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;

	for (size_t i = 0; result == CUDA_SUCCESS && i < original->count; i++)
		result = clone_node(graph, original->nodes[i]);
	if (result == CUDA_SUCCESS) {
		graph->original = original;
		*out = graph;
	} else if (graph) {
		sim_graph_free(graph);
	}
	return result;
}

SIM_EXPORT CUresult cuGraphClone(CUgraph *out, CUgraph original)
{
	TRY(sim_graph_lock(original, NULL, 0, out));
	return sim_object_unlock(sim_graph_clone(out, original));
}

SIM_EXPORT CUresult cuGraphAddChildGraphNode(CUgraphNode *out, CUgraph graph, const CUgraphNode *dependencies,
					     size_t count, CUgraph child)
{
	struct sim_work work = {.type = CU_GRAPH_NODE_TYPE_GRAPH};

	TRY(sim_graph_lock(graph, dependencies, count, out));
	if (!sim_object_is(child, SIM_GRAPH))
		return sim_object_unlock(CUDA_ERROR_INVALID_VALUE);
	CUresult result = sim_graph_add(graph, dependencies, count, &work, out);
	if (result == CUDA_SUCCESS)
		result = sim_graph_clone(&(*out)->child, child);
	if (result == CUDA_SUCCESS)
		(*out)->child->is_child = true;
	return sim_object_unlock(result);
}

SIM_EXPORT CUresult cuGraphChildGraphNodeGetGraph(CUgraphNode node, CUgraph *graph)
{
	TRY(graph ? sim_graph_lock_node(node, CU_GRAPH_NODE_TYPE_GRAPH) : CUDA_ERROR_INVALID_VALUE);
	*graph = node->child;
	return sim_object_unlock(CUDA_SUCCESS);
}

SIM_EXPORT CUresult cuGraphNodeGetType(CUgraphNode node, int *type)
{
	TRY(type ? sim_graph_lock_node(node, -1) : CUDA_ERROR_INVALID_VALUE);
	*type = node->work.type;
	return sim_object_unlock(CUDA_SUCCESS);
}

/* Programs call this twice: without an array for the number, then with one. Entries beyond the list become NULL. */
static CUresult list_nodes(const struct sim_graph *graph, bool roots_only, CUgraphNode *nodes, size_t *count)
{
	size_t room = nodes ? *count : 0, found = 0;

	for (size_t i = 0; i < graph->count; i++) {
		if (roots_only && graph->nodes[i]->dependency_count)
			continue;
		if (found < room)
			nodes[found] = graph->nodes[i];
		found++;
	}
	for (size_t i = found; i < room; i++)
		nodes[i] = NULL;
	if (!nodes || found < room)
		*count = found;
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuGraphGetNodes(CUgraph graph, CUgraphNode *nodes, size_t *count)
{
	TRY(sim_graph_lock(graph, NULL, 0, count));
	return sim_object_unlock(list_nodes(graph, false, nodes, count));
}

SIM_EXPORT CUresult cuGraphGetRootNodes(CUgraph graph, CUgraphNode *nodes, size_t *count)
{
	TRY(sim_graph_lock(graph, NULL, 0, count));
	return sim_object_unlock(list_nodes(graph, true, nodes, count));
}

/* The edges to `to_node`; NULL: all edges. */
static CUresult list_edges(const struct sim_graph *graph, const struct sim_node *to_node, CUgraphNode *from,
			   CUgraphNode *to, size_t *count)
{
	size_t room = from || to ? *count : 0, found = 0;

	for (size_t i = 0; i < graph->count; i++) {
		struct sim_node *node = graph->nodes[i];
		for (size_t j = 0; (!to_node || node == to_node) && j < node->dependency_count; j++) {
			if (found < room && from)
				from[found] = node->dependencies[j];
			if (found < room && to)
				to[found] = node;
			found++;
		}
	}
	if (!room || found < room)
		*count = found;
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuGraphGetEdges(CUgraph graph, CUgraphNode *from, CUgraphNode *to, size_t *count)
{
	TRY(sim_graph_lock(graph, NULL, 0, count));
	return sim_object_unlock(list_edges(graph, NULL, from, to, count));
}

SIM_EXPORT CUresult cuGraphNodeGetDependencies(CUgraphNode node, CUgraphNode *dependencies, size_t *count)
{
	TRY(count ? sim_graph_lock_node(node, -1) : CUDA_ERROR_INVALID_VALUE);
	return sim_object_unlock(list_edges(node->graph, node, dependencies, NULL, count));
}

static bool reaches(struct sim_node *from, const struct sim_node *node)
{
	if (from == node)
		return true;
	if (from->visited)
		return false;
	from->visited = true;
	for (size_t i = 0; i < from->dependency_count; i++)
		if (reaches(from->dependencies[i], node))
			return true;
	return false;
}

static bool makes_cycle(struct sim_node *from, struct sim_node *to)
{
	for (size_t i = 0; i < to->graph->count; i++)
		to->graph->nodes[i]->visited = false;
	return reaches(from, to);
}

SIM_EXPORT CUresult cuGraphAddDependencies(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to, size_t count)
{
	CUresult result = sim_graph_lock(graph, from, count, &graph);

	if (result != CUDA_SUCCESS)
		return result;
	for (size_t i = 0; result == CUDA_SUCCESS && i < count; i++) {
		if (!to || !sim_object_is(to[i], SIM_NODE) || to[i]->graph != graph || makes_cycle(from[i], to[i]))
			result = CUDA_ERROR_INVALID_VALUE;
		else if (!depend(to[i], &from[i], 1))
			result = CUDA_ERROR_OUT_OF_MEMORY;
	}
	return sim_object_unlock(result);
}
