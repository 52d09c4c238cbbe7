#ifndef CUDA_MODULE_H
#define CUDA_MODULE_H

#include "cuda_work.h"

/* Check a launch and make work of it. */
CUresult sim_launch_prepare(const struct sim_launch *launch, struct sim_work *work);

#endif
