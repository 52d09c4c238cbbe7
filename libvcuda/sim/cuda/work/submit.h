/*
 * Submitting work to a stream, or to the graph that the stream is capturing.
 */
#ifndef CUDA_SUBMIT_H
#define CUDA_SUBMIT_H

#include "cuda/graph/work.h"

/* The cost of a call for the thread that makes it, in virtual time; README.md names the sources of the figures. */
#define SIM_COST_LAUNCH 4000u
#define SIM_COST_GRAPH 6000u
#define SIM_COST_COPY 3000u
#define SIM_COST_TIMED_RECORD 2500u
#define SIM_COST_RECORD 250u
#define SIM_COST_QUERY 500u
#define SIM_COST_SYNCHRONIZE 2000u

/*
 * Submits a copy of the work to the stream. The work may be done when this returns, or later, or it may have become a
 * node. `wait`: returns when it is done, which a capturing stream refuses.
 */
CUresult sim_queue_submit(CUstream stream, const struct sim_work *work, bool wait);

CUresult cuStreamIsCapturing(CUstream stream, int *status);

/* Enters the kernel into its meeting, or checks again. Returns whether all have come, and stores since when. */
bool sim_meeting_join(struct sim_work *work, uint64_t time, uint64_t *since);

CUresult sim_stream_check(CUstream stream);
CUresult sim_stream_context(CUstream stream, struct sim_context **context);

CUresult sim_copy_check(const struct sim_copy *copy);
bool sim_copy_is_nothing(const struct sim_copy *copy);
CUdeviceptr sim_copy_row(const struct sim_side *side, size_t row, size_t slice); /* where a row begins */
void sim_copy_perform(const struct sim_copy *copy);
uint64_t sim_copy_duration(struct sim_copy *copy, const struct sim_context *context);
CUresult sim_copy_call_from_3d(const CUDA_MEMCPY3D *parameters, struct sim_copy *copy);
uint64_t sim_copy_fill_duration(const struct sim_fill *fill, const struct sim_context *context);
CUresult sim_copy_fill_check(const struct sim_fill *fill);
void sim_copy_fill_perform(const struct sim_fill *fill);

#endif
