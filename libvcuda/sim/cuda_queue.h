/* The queues behind the streams. All under sim_driver.lock. */
#ifndef CUDA_QUEUE_H
#define CUDA_QUEUE_H

#include "cuda_stream.h"

/* The stream's handle goes; the stream itself when it has carried out what it holds. */
void sim_queue_end(struct sim_stream *stream);
CUresult sim_queue_wait_moment(struct sim_context *context, struct sim_moment *moment);
CUresult sim_event_renew(struct sim_event *event, struct sim_work *work);

#endif
