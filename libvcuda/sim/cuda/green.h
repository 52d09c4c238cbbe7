#ifndef CUDA_GREEN_H
#define CUDA_GREEN_H

#include "cuda/work.h"

/* A kernel gets no more of the card than its context has, and takes longer for it. */
void sim_green_restrict(struct sim_work *work, const struct sim_context *context);

#endif
