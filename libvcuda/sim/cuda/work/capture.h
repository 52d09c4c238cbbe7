/*
 * A stream's place in a capture, and the captures in progress. All under sim_driver.lock.
 */
#ifndef CUDA_CAPTURE_H
#define CUDA_CAPTURE_H

#include "cuda/graph/graph.h"

#define SIM_FRONTIER 32

enum { SIM_CAPTURE_GLOBAL, SIM_CAPTURE_THREAD_LOCAL, SIM_CAPTURE_RELAXED };

/* A stream's or an event's place in a capture. */
struct sim_place {
	struct sim_capture *capture; /* NULL: in no capture */
	struct sim_place *next;      /* the next place in the same capture */
	unsigned long long id;       /* of the capture: distinguishes an event's place in an earlier capture */
	struct sim_node *frontier[SIM_FRONTIER];
	unsigned count;
};

struct sim_capture {
	struct sim_graph *graph;
	CUstream origin;
	unsigned long long id;
	struct sim_place *places; /* of the streams that take part */
	bool is_invalid;
	bool owns_graph;
	int mode;
	const void *thread;
	struct sim_capture *next; /* list of all captures in progress */
};

/* The work of a capturing stream becomes a node. */
CUresult sim_capture_work(struct sim_place *place, const struct sim_work *work);
void sim_capture_join(struct sim_place *place, const struct sim_place *event);
/* Adds a node to those that the next one depends on. */
void sim_capture_widen(struct sim_place *place, struct sim_node *node);
void sim_capture_forget(struct sim_place *place); /* the place's stream is destroyed */
/* Whether a capture forbids this thread unsafe calls; if so, that capture becomes invalid. */
bool sim_capture_forbids(void);
/* The place becomes the origin of a capture, into this graph or a new one. */
CUresult sim_capture_begin(struct sim_place *place, CUstream origin, struct sim_graph *graph,
			   const CUgraphNode *dependencies, size_t count, int mode);
CUresult sim_capture_end(struct sim_place *place, struct sim_graph **graph);

#endif
