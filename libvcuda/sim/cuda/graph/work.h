/*
 * Work: what a stream carries, in order, and what a node of a graph does. Every entry point that a stream orders
 * describes its effect as a struct sim_work, and submits it by cuda/work/submit.h.
 */
#ifndef CUDA_WORK_H
#define CUDA_WORK_H

#include "cuda/base/context.h"

/* One side of a copy. For an array, the base is that of its storage. */
struct sim_side {
	CUdeviceptr base;
	bool on_card; /* the caller requires it: a pointer to no known allocation is an error */
	bool is_ours; /* it was a known allocation when the copy was submitted; once freed, it is not touched */
	size_t pitch, rows;
	size_t x, y, z;
};

struct sim_copy {
	struct sim_side to, from;
	bool is_within;              /* within one card; determined when the copy is submitted */
	size_t width, height, depth; /* bytes, rows, slices */
};

struct sim_fill {
	CUdeviceptr to;
	size_t pitch;
	unsigned value, element; /* element: 1, 2 or 4 bytes */
	size_t width, height;    /* elements, rows */
};

struct sim_host_call {
	CUhostFn function;          /* exactly one of function and callback is set */
	CUstreamCallback callback;
	void *argument;
	CUstream stream;
	bool by_card;               /* stands for what the card does: a write of a value */
};

/*
 * When an event was last recorded. Work holds the moment, not the event, so that a program may free or reuse the event.
 */
struct sim_moment {
	unsigned references;
	bool reached;
	uint64_t time; /* ns */
};

#define SIM_WHOLE_CARD 1000u

struct sim_launch {
	CUfunction function;
	unsigned grid[3], block[3], shared;
	bool cooperative;
};

struct sim_work {
	int type; /* CU_GRAPH_NODE_TYPE_... */
	union {
		struct sim_launch launch;
		struct sim_copy copy;
		struct sim_fill fill;
		struct sim_host_call host;
		struct sim_moment *moment; /* of a record or a wait */
		CUevent event;             /* the same in a graph, where the launch adds the moment */
		struct {
			CUdeviceptr pointer;
			size_t bytes;
			CUdevice device;
		} memory;              /* of an allocation or a free */
		const struct sim_memops *memops; /* of a node in a graph */
	};
	uint64_t duration; /* ns that it takes */
	unsigned share;    /* part of the multiprocessors that it fills, in 1/1000; 0: none, it needs no time slice */
	uint64_t meeting;  /* the meeting of kernels that wait for each other; 0: none */
	uint64_t parties;  /* number of kernels in the meeting */
	/* For the queue. */
	struct sim_context *context;
	struct sim_work *next;
	uint64_t sequence; /* in its context */
	enum sim_work_state { SIM_WAITING, SIM_PAUSED, SIM_RUNNING } state;
	bool was_crowded;  /* had to wait for room on the card */
	bool is_meeting;   /* it has begun, and some of the others have not */
	uint64_t round;    /* of the meeting; 0: not begun yet */
	uint64_t submitted, remaining, end;
};

#endif
