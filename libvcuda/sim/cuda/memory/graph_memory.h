/*
 * A device's graph memory, for the allocation nodes of graphs (cuda/gexec/graph_memory_nodes.c) and for the streams
 * that reach them. Under the lock, all but sim_graph_memory_alloc.
 */
#ifndef CUDA_GRAPH_MEMORY_H
#define CUDA_GRAPH_MEMORY_H

#include "cuda/memory/allocation.h"

uint64_t sim_graph_memory_round(uint64_t bytes, CUdevice device);
/* Charges the card for what is not kept already. */
CUresult sim_graph_memory_reserve(CUdevice device, uint64_t bytes);
void sim_graph_memory_trim(CUdevice device);
/* The nodes of an executable graph; of those that ended, the device keeps the memory for the next. */
CUresult sim_graph_memory_keep_nodes(CUdevice device, size_t nodes);
void sim_graph_memory_leave_nodes(CUdevice device, size_t nodes);
/* The device's last context has ended. */
void sim_graph_memory_end(CUdevice device);
/* Carries out an allocation node when a stream reaches it. */
void sim_graph_memory_alloc(struct sim_context *context, CUdevice device, CUdeviceptr pointer, size_t bytes);

#endif
