/*
 * Graphs, their nodes, and the plans that are launched. All under sim_driver.lock. What a node does is struct sim_work
 * in cuda/graph/work.h.
 */
#ifndef CUDA_GRAPH_H
#define CUDA_GRAPH_H

#include "cuda/graph/work.h"

#define SIM_LANES 32

struct sim_node {
	struct sim_object object;
	struct sim_graph *graph;
	struct sim_work work;
	struct sim_graph *child;
	struct sim_choice *choice; /* bodies of a conditional node */
	struct sim_node **dependencies;
	size_t dependency_count;
	struct sim_node *original; /* the node in the graph that this one was cloned from */
	size_t step;               /* number of its last step, while a plan is made */
	bool visited;
};

struct sim_graph {
	struct sim_object object;
	struct sim_node **nodes; /* in the order of creation */
	size_t count, room;
	bool is_child;
	bool is_body;                  /* body of a conditional node: it must not contain every kind of node */
	struct sim_condition *conditions; /* handles that conditional nodes of the graph may use */
	struct sim_graph *original;
};

/* A handle of a conditional node, see cuda/graph/graph_condition.c. */
struct sim_condition {
	struct sim_object object;
	struct sim_condition *next; /* the next one of the same graph */
	unsigned value;
	bool is_used;               /* a handle belongs to one node only */
};

/* The bodies of a conditional node and what decides among them. */
struct sim_choice {
	int type;
	unsigned value, size;
	struct sim_graph *bodies[];
};

/* One launchable item: a node's work. Steps are in an order that honours all dependencies. */
struct sim_step {
	struct sim_node *node; /* only compared: the node may be freed; NULL: the beginning of a child graph */
	struct sim_work work;
	bool disabled;
	unsigned lane;         /* a stream of the launch: its steps run one after the other */
	bool is_awaited;       /* steps of other lanes wait for this one */
	size_t first_wait, wait_count; /* in sim_plan.waits: the steps of other lanes that this one waits for */
};

/* What a launch submits; cuda/graph/graph_plan.c makes it. Steps of different lanes may run at the same time. */
struct sim_plan {
	struct sim_step *steps;
	size_t count;
	size_t *waits; /* numbers of steps; those that one step waits for are contiguous */
	size_t wait_count;
	unsigned lanes;
	size_t tails[SIM_LANES]; /* the last step of each lane */
};

struct sim_exec {
	struct sim_object object;
	unsigned long long flags;
	struct sim_plan plan;
	CUdevice device; /* whose memory its nodes take */
	size_t nodes;
};

struct sim_graph *sim_graph_new(void);
CUresult sim_graph_clone(struct sim_graph **out, struct sim_graph *original);
/* The graph that runs in place of the node (a child graph or the chosen body); NULL: the node's own work runs. */
struct sim_graph *sim_graph_condition_runs(const struct sim_node *node);
/* An empty choice; its bodies are empty graphs. NULL: no memory. */
struct sim_choice *sim_graph_choice_new(int type, unsigned value, unsigned size);
void sim_graph_choice_free(struct sim_choice *choice);
void sim_graph_free(struct sim_graph *graph);
CUresult sim_graph_add(struct sim_graph *graph, const CUgraphNode *dependencies, size_t count,
		       const struct sim_work *work, struct sim_node **node);
/* For entry points: check, and on CUDA_SUCCESS return with the lock held. */
CUresult sim_graph_lock(CUgraph graph, const CUgraphNode *dependencies, size_t count, const void *out);
CUresult sim_graph_lock_node(CUgraphNode node, int type);

/* Plans. Under the lock. A launch works on a copy, because the graph may change meanwhile. */
bool sim_graph_plan_make(struct sim_plan *plan, const struct sim_graph *graph);
bool sim_graph_plan_copy(struct sim_plan *plan, const struct sim_plan *original);
void sim_graph_plan_free(struct sim_plan *plan);
/* Compares kinds and order of work. Returns the first step that differs, or the number of steps if all are equal. */
size_t sim_graph_plan_compare(const struct sim_plan *a, const struct sim_plan *b);

#endif
