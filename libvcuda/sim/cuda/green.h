/*
 * How a green context limits its kernels, for cuda/launch.c. Everything else about green contexts is in cuda/green.c.
 */
#ifndef CUDA_GREEN_H
#define CUDA_GREEN_H

#include "cuda/work.h"

/* Limits a kernel to its context's part of the card, which makes it take longer. */
void sim_green_restrict(struct sim_work *work, const struct sim_context *context);

#endif
