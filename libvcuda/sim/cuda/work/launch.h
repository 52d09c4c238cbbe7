/*
 * Making work of a launch, for streams and for nodes of graphs.
 */
#ifndef CUDA_LAUNCH_H
#define CUDA_LAUNCH_H

#include "cuda/code/module.h"
#include "cuda/work/submit.h"

/* Checks a launch and makes a work of it. */
CUresult sim_launch_prepare(const struct sim_launch *launch, void **arguments, struct sim_work *work);
/* Limits a kernel to its green context's part of the card, which makes it take longer. */
void sim_launch_restrict(struct sim_work *work, const struct sim_context *context);

#endif
