/*
 * Events that processes share, for cuda/work/event_call.c: recording, waiting and querying.
 */
#ifndef CUDA_IPC_EVENT_H
#define CUDA_IPC_EVENT_H

#include "cuda/work/stream.h"

CUresult sim_ipc_event_record(CUevent event, CUstream stream);
CUresult sim_ipc_event_wait(CUstream stream, CUevent event);
CUresult sim_ipc_event_query(const struct sim_event *event); /* under the lock, like the next function */
void sim_ipc_event_synchronize(struct sim_event *event);

#endif
