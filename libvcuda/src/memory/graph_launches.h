/*
 * Graphs with allocation nodes that were launched: which of them may still take memory. The driver's pool of graph
 * memory grows when a stream gets to a node, which may be long after the launch.
 *
 * Belongs here: one entry per executable graph, from its first launch until it is destroyed and has run, with an event
 * behind the last launch. Executions of one executable follow one another, so it takes its memory once, however often
 * it is launched. Entries are touched under the lock of memory/pools.c alone; launched_mark is called without.
 */
#ifndef VCUDA_LAUNCHED_H
#define VCUDA_LAUNCHED_H

#include <stdbool.h>
#include <stdint.h>

#include "cuda_abi.h"

struct launched;

/* What a launch is about: the graph, what it takes, and what of it the next launch frees first, if it is still there. */
struct graph_memory {
	CUgraphExec exec;
	uint64_t size;
	uint64_t left;
};

/*
 * Begins a call that launches it; the bytes that it may take beside what is used and launched already. NULL in *entry:
 * there is no memory for the entry.
 */
uint64_t launched_begin(struct launched **list, const struct graph_memory *graph, struct launched **entry);

/* An event behind the launch, and the context that it goes with. */
struct launched_mark {
	CUevent event;     /* NULL: it has run */
	CUcontext context; /* NULL: nothing was launched */
};

/* The call is over; the mark is the entry's from here on. */
void launched_end(struct launched *entry, struct launched_mark mark);

/* The context is destroyed, with the marks that belong to it. */
void launched_drop_context(struct launched *list, CUcontext context);

/* The executable was destroyed: its address may be another's next. */
void launched_gone(struct launched *list, CUgraphExec exec);

/* Some graph's memory was freed by a call, or by another graph: nobody can rely on finding there what it left. */
void launched_freed(void);

/* What those may take that have not run. Forgets who has run and is destroyed. */
uint64_t launched_bytes(struct launched **list);

/* Marks what the stream holds, whatever context is current. A stream that takes no event is waited for. */
struct launched_mark launched_mark(CUstream stream);

/* Waits for what the stream holds, a second at most. False: it holds nothing. */
bool launched_await(CUstream stream);

#endif
