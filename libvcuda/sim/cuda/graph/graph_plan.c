/*
 * The order in which a graph's nodes are submitted: a node comes after those that it depends on. Nodes that do not
 * depend on each other get lanes (streams) of their own while there are any. The functions here only compute a plan;
 * cuda/gexec/graph_exec.c submits it.
 */
#include <stdlib.h>
#include <string.h>

#include "cuda/graph/graph.h"

#define NOWHERE SIZE_MAX

/* A child graph needs a step for its beginning and one for its end. */
static void measure(const struct sim_graph *graph, size_t *steps, size_t *waits)
{
	for (size_t i = 0; i < graph->count; i++) {
		const struct sim_node *node = graph->nodes[i];
		const struct sim_graph *child = sim_graph_condition_runs(node);
		*steps += child ? 2 : 1;
		*waits += node->dependency_count;
		if (!child)
			continue;
		*waits += 2 * child->count + 1; /* for its roots and leaves */
		measure(child, steps, waits);
	}
}

static struct sim_step *add_step(struct sim_plan *plan, struct sim_node *node, const struct sim_work *work)
{
	struct sim_step *step = &plan->steps[plan->count++];

	*step = (struct sim_step){.node = node, .work = *work, .first_wait = plan->wait_count};
	return step;
}

static void add_wait(struct sim_plan *plan, struct sim_step *step, size_t on)
{
	plan->waits[plan->wait_count++] = on;
	step->wait_count++;
}

/*
 * Continues the lane of a step that this one waits for, or a lane whose last step is awaited and which has therefore
 * ended.
 */
static unsigned choose_lane(struct sim_plan *plan, const struct sim_step *step)
{
	for (size_t i = 0; i < step->wait_count; i++) {
		size_t on = plan->waits[step->first_wait + i];
		if (plan->tails[plan->steps[on].lane] == on)
			return plan->steps[on].lane;
	}
	for (unsigned lane = 0; step->wait_count && lane < plan->lanes; lane++)
		if (plan->steps[plan->tails[lane]].is_awaited)
			return lane;
	return plan->lanes < SIM_LANES ? plan->lanes++ : (unsigned)(plan->count % SIM_LANES);
}

/* The step's waits are complete: chooses its lane, and keeps only the waits for other lanes. */
static void place(struct sim_plan *plan, struct sim_step *step)
{
	size_t kept = 0;

	step->lane = choose_lane(plan, step);
	for (size_t i = 0; i < step->wait_count; i++) {
		size_t on = plan->waits[step->first_wait + i];
		if (plan->steps[on].lane == step->lane)
			continue;
		plan->steps[on].is_awaited = true;
		plan->waits[step->first_wait + kept++] = on;
	}
	step->wait_count = kept;
	plan->wait_count = step->first_wait + kept;
	plan->tails[step->lane] = (size_t)(step - plan->steps);
}

static bool has_dependents(const struct sim_graph *graph, const struct sim_node *node)
{
	for (size_t i = 0; i < graph->count; i++)
		for (size_t j = 0; j < graph->nodes[i]->dependency_count; j++)
			if (graph->nodes[i]->dependencies[j] == node)
				return true;
	return false;
}

static void visit(struct sim_plan *plan, struct sim_node *node, size_t entry);

static void visit_all(struct sim_plan *plan, const struct sim_graph *graph, size_t entry)
{
	for (size_t i = 0; i < graph->count; i++)
		graph->nodes[i]->visited = false;
	for (size_t i = 0; i < graph->count; i++)
		visit(plan, graph->nodes[i], entry);
}

static void add_child(struct sim_plan *plan, struct sim_node *node, const struct sim_graph *child, size_t entry)
{
	const struct sim_work nothing = {.type = CU_GRAPH_NODE_TYPE_EMPTY};

	visit_all(plan, child, entry);
	struct sim_step *end = add_step(plan, node, &nothing);
	add_wait(plan, end, entry);
	for (size_t i = 0; i < child->count; i++)
		if (!has_dependents(child, child->nodes[i]))
			add_wait(plan, end, child->nodes[i]->step);
	place(plan, end);
}

/* Depth first; there are no cycles. */
static void visit(struct sim_plan *plan, struct sim_node *node, size_t entry)
{
	const struct sim_work nothing = {.type = CU_GRAPH_NODE_TYPE_EMPTY};
	const struct sim_graph *child = sim_graph_condition_runs(node);

	if (node->visited)
		return;
	node->visited = true;
	for (size_t i = 0; i < node->dependency_count; i++)
		visit(plan, node->dependencies[i], entry);
	struct sim_step *step = add_step(plan, child ? NULL : node, child || node->choice ? &nothing : &node->work);
	for (size_t i = 0; i < node->dependency_count; i++)
		add_wait(plan, step, node->dependencies[i]->step);
	if (!node->dependency_count && entry != NOWHERE)
		add_wait(plan, step, entry);
	place(plan, step);
	if (child)
		add_child(plan, node, child, plan->count - 1);
	node->step = plan->count - 1;
}

static bool make_room(struct sim_plan *plan, size_t steps, size_t waits)
{
	*plan = (struct sim_plan){
		.steps = calloc(steps + 1, sizeof *plan->steps),
		.waits = calloc(waits + 1, sizeof *plan->waits),
	};
	if (plan->steps && plan->waits)
		return true;
	sim_graph_plan_free(plan);
	return false;
}

bool sim_graph_plan_make(struct sim_plan *plan, const struct sim_graph *graph)
{
	size_t steps = 0, waits = 0;

	measure(graph, &steps, &waits);
	if (!make_room(plan, steps, waits))
		return false;
	visit_all(plan, graph, NOWHERE);
	return true;
}

bool sim_graph_plan_copy(struct sim_plan *plan, const struct sim_plan *original)
{
	if (!make_room(plan, original->count, original->wait_count))
		return false;
	struct sim_step *steps = memcpy(plan->steps, original->steps, original->count * sizeof *steps);
	size_t *waits = memcpy(plan->waits, original->waits, original->wait_count * sizeof *waits);
	*plan = *original;
	plan->steps = steps;
	plan->waits = waits;
	return true;
}

void sim_graph_plan_free(struct sim_plan *plan)
{
	free(plan->steps);
	free(plan->waits);
	plan->steps = NULL;
	plan->waits = NULL;
}

static bool is_same(const struct sim_plan *a, const struct sim_plan *b, size_t i)
{
	const struct sim_step *one = &a->steps[i], *other = &b->steps[i];

	return one->work.type == other->work.type && one->lane == other->lane && one->wait_count == other->wait_count &&
	       memcmp(a->waits + one->first_wait, b->waits + other->first_wait, one->wait_count * sizeof *a->waits) ==
		       0;
}

size_t sim_graph_plan_compare(const struct sim_plan *a, const struct sim_plan *b)
{
	size_t i = 0;

	while (i < a->count && i < b->count && is_same(a, b, i))
		i++;
	return i;
}
