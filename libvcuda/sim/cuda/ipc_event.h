#ifndef CUDA_IPC_EVENT_H
#define CUDA_IPC_EVENT_H

#include "cuda/stream.h"

/* What an event made for other processes shares with them. */
struct sim_shared *sim_shared_new(void);
void sim_shared_drop(struct sim_shared *shared); /* under the lock */

CUresult sim_shared_record(CUevent event, CUstream stream);
CUresult sim_shared_wait(CUstream stream, CUevent event);
CUresult sim_shared_query(const struct sim_event *event); /* under the lock, as the next */
void sim_shared_synchronize(struct sim_event *event);

#endif
