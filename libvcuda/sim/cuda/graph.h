/* Graphs, their nodes, and what is made of them to be launched. All under sim_driver.lock. */
#ifndef CUDA_GRAPH_H
#define CUDA_GRAPH_H

#include "cuda/work.h"

#define SIM_FRONTIER 32
#define SIM_LANES 32

struct sim_node {
	struct sim_object object;
	struct sim_graph *graph;
	struct sim_work work;
	struct sim_graph *child;
	struct sim_choice *choice; /* of a conditional node: its bodies */
	struct sim_node **dependencies;
	size_t dependency_count;
	struct sim_node *original; /* in the graph that this one was cloned from */
	struct sim_attributes *attributes; /* NULL: none was set */
	size_t step;               /* its last one, while a plan is made */
	bool visited;
};

struct sim_graph {
	struct sim_object object;
	struct sim_node **nodes; /* in the order of their making */
	size_t count, room;
	bool is_child;
	bool is_body;                  /* of a conditional node: not every kind of node may be in it */
	struct sim_condition *conditions; /* that nodes of it can hang on */
	struct sim_graph *original;
	struct sim_user_reference *users; /* user objects that it holds */
};

/* One launchable item: a node's work, in an order that honours all dependencies. */
struct sim_step {
	struct sim_node *node; /* only compared: it may be gone; NULL: the beginning of a child graph */
	struct sim_work work;
	bool disabled;
	unsigned lane;         /* steps of one lane run one after the other, */
	bool is_awaited;       /* and some wait for steps of other lanes: */
	size_t first_wait, wait_count;
};

/* What a launch submits, made by cuda/graph_plan.c. Steps of different lanes may run at the same time. */
struct sim_plan {
	struct sim_step *steps;
	size_t count;
	size_t *waits; /* numbers of steps, those of one step side by side */
	size_t wait_count;
	unsigned lanes;
	size_t tails[SIM_LANES]; /* the last step of each */
};

struct sim_exec {
	struct sim_object object;
	unsigned long long flags;
	struct sim_plan plan;
};

/* A stream's or an event's place in a capture. */
struct sim_place {
	struct sim_capture *capture; /* NULL: none */
	struct sim_place *next;      /* that takes part in it */
	unsigned long long id;       /* of the capture, to tell an event's place in an old one */
	struct sim_node *frontier[SIM_FRONTIER];
	unsigned count;
};

struct sim_graph *sim_graph_new(void);
CUresult sim_graph_clone(struct sim_graph **out, struct sim_graph *original);
/* What runs in the node's place: a child graph, the body that is chosen; NULL: the node's own work, if any. */
struct sim_graph *sim_node_runs(const struct sim_node *node);
CUresult sim_choice_clone(struct sim_node *node, const struct sim_node *original);
void sim_choice_of(struct sim_node *node);
void sim_conditions_of(struct sim_graph *graph);
void sim_graph_free(struct sim_graph *graph);
CUresult sim_graph_add(struct sim_graph *graph, const CUgraphNode *dependencies, size_t count,
                       const struct sim_work *work, struct sim_node **node);
/* The entry points' frame: checks, and on CUDA_SUCCESS leaves the lock taken. */
CUresult sim_lock_graph(CUgraph graph, const CUgraphNode *dependencies, size_t count, const void *out);
CUresult sim_lock_node(CUgraphNode node, int type);

/* Fill `work` from the parameters of a node. */
CUresult sim_launch_from(const CUDA_KERNEL_NODE_PARAMS *parameters, bool has_kernel, struct sim_work *work);
CUresult sim_fill_from(const CUDA_MEMSET_NODE_PARAMS *parameters, struct sim_work *work);

/* What the entry points of the kinds of nodes do: add one, change one in its graph or in what was made of the graph. */
CUresult sim_node_add(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count,
                      CUresult result, const struct sim_work *work);
CUresult sim_node_change(CUgraphNode node, CUresult result, const struct sim_work *work);
CUresult sim_step_change(CUgraphExec exec, CUgraphNode node, CUresult result, const struct sim_work *work);

/* Under the lock. The copy is what a launch works on: the graph may change meanwhile. */
bool sim_plan_make(struct sim_plan *plan, const struct sim_graph *graph);
bool sim_plan_copy(struct sim_plan *plan, const struct sim_plan *original);
void sim_plan_free(struct sim_plan *plan);
/* Would it submit the same kinds of work in the same order? The first step that differs, or the number of steps. */
size_t sim_plan_compare(const struct sim_plan *a, const struct sim_plan *b);

/* User objects that a graph holds go with it; what was made of the graph shares them. Under the lock. */
void sim_users_of(struct sim_graph *graph);
bool sim_users_share(struct sim_graph *to, const struct sim_graph *from);

/* Capture: what to do with work for a stream that is capturing. */
CUresult sim_capture_work(struct sim_place *place, const struct sim_work *work);
void sim_capture_join(struct sim_place *place, const struct sim_place *event);
void sim_capture_forget(struct sim_place *place); /* its stream goes */
/* Whether a capture forbids this thread what might be unsafe; such captures are invalid from then on. Under the lock. */
bool sim_capture_forbids(void);
/* Lock and find a stream's place; the default stream has none. */
CUresult sim_lock_place(CUstream stream, struct sim_place **place);
bool sim_stream_is_legacy(CUstream stream);

#endif
