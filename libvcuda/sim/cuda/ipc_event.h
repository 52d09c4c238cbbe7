/*
 * Events that processes share, for cuda/event.c: the shared page, recording, waiting and querying. Their IPC handles
 * stay in cuda/ipc_event.c.
 */
#ifndef CUDA_IPC_EVENT_H
#define CUDA_IPC_EVENT_H

#include "cuda/stream.h"

/* The page that an interprocess event shares with other processes. */
struct sim_shared *sim_ipc_event_new(void);
void sim_ipc_event_drop(struct sim_shared *shared); /* under the lock */

CUresult sim_ipc_event_record(CUevent event, CUstream stream);
CUresult sim_ipc_event_wait(CUstream stream, CUevent event);
CUresult sim_ipc_event_query(const struct sim_event *event); /* under the lock, like the next function */
void sim_ipc_event_synchronize(struct sim_event *event);

#endif
