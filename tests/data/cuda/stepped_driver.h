/*
 * What a program and stepped_driver.c have of each other. The program's kernels and streams are these structures; it finds
 * the driver's `stepped` with dlsym, moves its clock, and has libvcuda's thread look when it wants it to.
 */
#ifndef STEPPED_DRIVER_H
#define STEPPED_DRIVER_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "cuda_abi.h"

struct stepped_kernel {
	uint64_t ns;             /* on the card */
	CUresult result;         /* of launching it */
	atomic_bool is_held;     /* a launch does not return while this is set */
	atomic_bool has_entered; /* a launch that is held has begun */
};

struct stepped_stream {
	uint64_t busy_until;
	unsigned int events;     /* recorded in it */
};

struct stepped {
	_Atomic uint64_t now;
	void (*look)(void);      /* libvcuda's thread looks once; it does at no other time */
};

#endif
