/*
 * Attributes of streams and of kernel nodes. They are kept for programs that read them and have no effect in the
 * simulator. Attributes of a single launch are in cuda/launch.c.
 */
#include <stdlib.h>
#include <string.h>

#include "cuda/stream.h"

#define KNOWN 16

struct sim_attributes {
	struct { char bytes[64]; } values[KNOWN];
};

static CUresult set(struct sim_attributes **attributes, int id, const void *value)
{
	if (!*attributes)
		*attributes = calloc(1, sizeof **attributes);
	if (!*attributes)
		return CUDA_ERROR_OUT_OF_MEMORY;
	memcpy(&(*attributes)->values[id], value, sizeof (*attributes)->values[id]);
	return CUDA_SUCCESS;
}

/* An attribute that was not set is all zeros. */
static CUresult get_launch_attribute(const struct sim_attributes *attributes, int id, void *value)
{
	if (attributes)
		memcpy(value, &attributes->values[id], sizeof attributes->values[id]);
	else
		memset(value, 0, sizeof attributes->values[id]);
	return CUDA_SUCCESS;
}

static CUresult copy(struct sim_attributes **to, const struct sim_attributes *from)
{
	if (!from) {
		free(*to);
		*to = NULL;
		return CUDA_SUCCESS;
	}
	if (!*to)
		*to = malloc(sizeof **to);
	if (!*to)
		return CUDA_ERROR_OUT_OF_MEMORY;
	**to = *from;
	return CUDA_SUCCESS;
}

static CUresult check_attribute(int id, const void *value)
{
	return value && id > 0 && id < KNOWN ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static struct sim_attributes **of_stream(struct sim_stream *stream)
{
	return (struct sim_attributes **)&stream->object.owned;
}

SIM_EXPORT CUresult cuStreamSetAttribute(CUstream handle, int id, const void *value)
{
	struct sim_stream *stream;

	TRY(check_attribute(id, value));
	TRY(sim_stream_lock(handle, &stream));
	return sim_object_unlock(set(of_stream(stream), id, value));
}

SIM_EXPORT CUresult cuStreamGetAttribute(CUstream handle, int id, void *value)
{
	struct sim_stream *stream;

	TRY(check_attribute(id, value));
	TRY(sim_stream_lock(handle, &stream));
	return sim_object_unlock(get_launch_attribute(*of_stream(stream), id, value));
}

SIM_EXPORT CUresult cuStreamCopyAttributes(CUstream to, CUstream from)
{
	struct sim_stream *target;

	TRY(sim_stream_lock(to, &target));
	if (!sim_object_is(from, SIM_STREAM))
		return sim_object_unlock(CUDA_ERROR_INVALID_HANDLE);
	return sim_object_unlock(copy(of_stream(target), *of_stream(from)));
}

SIM_EXPORT CUresult cuGraphKernelNodeSetAttribute(CUgraphNode node, int id, const void *value)
{
	TRY(check_attribute(id, value));
	TRY(sim_graph_lock_node(node, CU_GRAPH_NODE_TYPE_KERNEL));
	return sim_object_unlock(set(&node->attributes, id, value));
}

SIM_EXPORT CUresult cuGraphKernelNodeGetAttribute(CUgraphNode node, int id, void *value)
{
	TRY(check_attribute(id, value));
	TRY(sim_graph_lock_node(node, CU_GRAPH_NODE_TYPE_KERNEL));
	return sim_object_unlock(get_launch_attribute(node->attributes, id, value));
}

SIM_EXPORT CUresult cuGraphKernelNodeCopyAttributes(CUgraphNode to, CUgraphNode from)
{
	TRY(sim_graph_lock_node(to, CU_GRAPH_NODE_TYPE_KERNEL));
	if (!sim_object_is(from, SIM_NODE) || from->work.type != CU_GRAPH_NODE_TYPE_KERNEL)
		return sim_object_unlock(CUDA_ERROR_INVALID_VALUE);
	return sim_object_unlock(copy(&to->attributes, from->attributes));
}
