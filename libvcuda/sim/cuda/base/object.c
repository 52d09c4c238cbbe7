/*
 * Handles of objects. A pointer is a handle only while it is in the tree, so a stale or wild pointer is an error and
 * not a crash. Each kind of object has its own file.
 */
#include <search.h>
#include <stdlib.h>

#include "cuda/base/context.h"

static void *tree;

static int compare_handles(const void *a, const void *b)
{
	return (a > b) - (a < b);
}

void *sim_object_create(size_t size, enum sim_kind kind, struct sim_context *context)
{
	struct sim_object *object = calloc(1, size);

	if (!object)
		return NULL;
	if (!tsearch(object, &tree, compare_handles)) {
		free(object);
		return NULL;
	}
	object->kind = kind;
	object->context = context;
	if (context) {
		object->next = context->objects;
		object->link = &context->objects;
		if (object->next)
			object->next->link = &object->next;
		context->objects = object;
	}
	return object;
}

bool sim_object_is(const void *handle, enum sim_kind kind)
{
	return handle && tfind(handle, &tree, compare_handles) && ((const struct sim_object *)handle)->kind == kind;
}

void sim_object_hide(void *handle)
{
	struct sim_object *object = handle;

	tdelete(object, &tree, compare_handles);
	if (object->link)
		*object->link = object->next;
	if (object->next)
		object->next->link = object->link;
}

void sim_object_destroy(void *handle)
{
	struct sim_object *object = handle;

	sim_object_hide(object);
	free(object->owned);
	free(object);
}

void sim_object_destroy_all(struct sim_context *context)
{
	while (context->objects)
		sim_object_destroy(context->objects);
}

CUresult sim_object_lock(const void *handle, enum sim_kind kind)
{
	TRY(sim_init_ready());
	pthread_mutex_lock(&sim_driver.lock);
	if (sim_object_is(handle, kind))
		return CUDA_SUCCESS;
	pthread_mutex_unlock(&sim_driver.lock);
	return CUDA_ERROR_INVALID_HANDLE;
}

CUresult sim_object_unlock(CUresult result)
{
	pthread_mutex_unlock(&sim_driver.lock);
	return result;
}
