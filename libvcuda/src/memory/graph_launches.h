/*
 * Launches of graphs with allocation nodes: which graphs may still take memory. The driver's pool of graph memory grows
 * when a stream reaches such a node, which may be long after the launch.
 *
 * Belongs here: one entry per executable graph, from its first launch until it has run and is destroyed, with an event
 * behind the last launch. The driver runs the launches of one executable graph one after the other, so the graph takes
 * its memory once, however often it is launched. Not here: what is booked for them (memory/pools.c). The lock of
 * memory/pools.c protects the entries; graph_launches_mark and graph_launches_await are called without it.
 */
#ifndef VCUDA_GRAPH_LAUNCHES_H
#define VCUDA_GRAPH_LAUNCHES_H

#include <stdbool.h>
#include <stdint.h>

#include "cuda_abi.h"

struct graph_launch;

struct graph_memory {
	CUgraphExec exec;
	uint64_t size; /* bytes that a launch takes */
	uint64_t left; /* bytes of `size` that a launch leaves allocated and that the next one frees first, if it can */
	bool tries; /* the call's charge for another card tries (struct pool_charge) */
};

/*
 * Begins a call that launches the graph. Returns the bytes that the launch may take beside those that are in use and
 * those that earlier launches may take. NULL in *entry: there is no memory for the entry.
 */
uint64_t graph_launches_begin(struct graph_launch **list, const struct graph_memory *graph,
			      struct graph_launch **entry);

/* An event behind a launch. Destroying the context destroys the event. */
struct graph_launch_mark {
	CUevent event; /* NULL: the launch has run */
	CUcontext context; /* NULL: nothing was launched */
};

/* Ends the call. The entry owns the mark from here on. */
void graph_launches_end(struct graph_launch *entry, struct graph_launch_mark mark);

/* The context was destroyed, and the marks in it with it. */
void graph_launches_drop_context(struct graph_launch *list, CUcontext context);

/* The executable graph was destroyed: a new one may get its address. */
void graph_launches_gone(struct graph_launch *list, CUgraphExec exec);

/*
 * A call or another graph has freed memory of a graph: no graph may rely any more on what its last launch left
 * allocated.
 */
void graph_launches_freed(void);

/* The bytes that graphs may take whose launches have not run. Drops the entries of destroyed graphs that have run. */
uint64_t graph_launches_bytes(struct graph_launch **list);

/*
 * Records an event behind the work of the stream, whatever context is current. If the stream takes no event, waits for
 * its work instead.
 */
struct graph_launch_mark graph_launches_mark(CUstream stream);

/* Waits for the work of the stream, for a second at most. */
void graph_launches_await(CUstream stream);

#endif
