/*
 * User objects: something of the program that graphs hold and that is destroyed when no graph holds it any more. Here
 * an executable graph does not hold them: a launch has its own copies of all that it needs.
 */
#include <limits.h>
#include <stdlib.h>

#include "cuda/graph.h"

#define NO_DESTRUCTOR_SYNC 1u
#define MOVE 1u

struct sim_user_object {
	struct sim_object object;
	void *pointer;
	CUhostFn destroy;
	unsigned long references;
};

struct sim_user_reference {
	struct sim_user_object *user;
	unsigned long count;
	struct sim_user_reference *next;
};

typedef struct sim_user_object *CUuserObject;

/* Under the lock, which is released for the program's own function: it must not call the driver, but it may wait. */
static void drop_references(struct sim_user_object *user, unsigned long count)
{
	user->references -= count < user->references ? count : user->references;
	if (user->references)
		return;
	CUhostFn destroy = user->destroy;
	void *pointer = user->pointer;
	sim_object_destroy(user);
	pthread_mutex_unlock(&sim_driver.lock);
	destroy(pointer);
	pthread_mutex_lock(&sim_driver.lock);
}

void sim_user_object_drop_all(struct sim_graph *graph)
{
	while (graph->users) {
		struct sim_user_reference *reference = graph->users;
		graph->users = reference->next;
		drop_references(reference->user, reference->count);
		free(reference);
	}
}

static struct sim_user_reference *find_user(struct sim_graph *graph, const struct sim_user_object *user)
{
	struct sim_user_reference *at = graph->users;

	while (at && at->user != user)
		at = at->next;
	return at;
}

static bool hold_user(struct sim_graph *graph, struct sim_user_object *user, unsigned long count)
{
	struct sim_user_reference *reference = find_user(graph, user);

	if (!reference) {
		reference = calloc(1, sizeof *reference);
		if (!reference)
			return false;
		reference->user = user;
		reference->next = graph->users;
		graph->users = reference;
	}
	reference->count += count;
	return true;
}

bool sim_user_object_share(struct sim_graph *to, const struct sim_graph *from)
{
	for (const struct sim_user_reference *at = from->users; at; at = at->next) {
		if (!hold_user(to, at->user, 1))
			return false;
		at->user->references++;
	}
	return true;
}

SIM_EXPORT CUresult cuUserObjectCreate(CUuserObject *out, void *pointer, CUhostFn destroy, unsigned count, unsigned flags)
{
	CUresult result = sim_init_ready();

	if (result != CUDA_SUCCESS)
		return result;
	if (!out || !destroy || !count || count > INT_MAX || flags != NO_DESTRUCTOR_SYNC)
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&sim_driver.lock);
	struct sim_user_object *user = sim_object_create(sizeof *user, SIM_USER_OBJECT, NULL);
	if (user) {
		user->pointer = pointer;
		user->destroy = destroy;
		user->references = count;
	}
	*out = user;
	return sim_object_unlock(user ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY);
}

static CUresult lock_user(CUuserObject user, unsigned count)
{
	CUresult result = count && count <= INT_MAX ? sim_object_lock(user, SIM_USER_OBJECT) : CUDA_ERROR_INVALID_VALUE;

	return result == CUDA_ERROR_INVALID_HANDLE ? CUDA_ERROR_INVALID_VALUE : result;
}

SIM_EXPORT CUresult cuUserObjectRetain(CUuserObject user, unsigned count)
{
	CUresult result = lock_user(user, count);

	if (result != CUDA_SUCCESS)
		return result;
	user->references += count;
	return sim_object_unlock(CUDA_SUCCESS);
}

SIM_EXPORT CUresult cuUserObjectRelease(CUuserObject user, unsigned count)
{
	CUresult result = lock_user(user, count);

	if (result != CUDA_SUCCESS)
		return result;
	drop_references(user, count);
	return sim_object_unlock(CUDA_SUCCESS);
}

SIM_EXPORT CUresult cuGraphRetainUserObject(CUgraph graph, CUuserObject user, unsigned count, unsigned flags)
{
	CUresult result = flags & ~MOVE ? CUDA_ERROR_INVALID_VALUE : lock_user(user, count);

	if (result != CUDA_SUCCESS)
		return result;
	if (!sim_object_is(graph, SIM_GRAPH))
		return sim_object_unlock(CUDA_ERROR_INVALID_VALUE);
	if (!hold_user(graph, user, count))
		return sim_object_unlock(CUDA_ERROR_OUT_OF_MEMORY);
	if (!(flags & MOVE))
		user->references += count;
	return sim_object_unlock(CUDA_SUCCESS);
}

SIM_EXPORT CUresult cuGraphReleaseUserObject(CUgraph graph, CUuserObject user, unsigned count)
{
	CUresult result = lock_user(user, count);

	if (result != CUDA_SUCCESS)
		return result;
	struct sim_user_reference *reference = sim_object_is(graph, SIM_GRAPH) ? find_user(graph, user) : NULL;
	if (!reference || reference->count < count)
		return sim_object_unlock(CUDA_ERROR_INVALID_VALUE);
	reference->count -= count;
	if (!reference->count) {
		struct sim_user_reference **at = &graph->users;
		while (*at != reference)
			at = &(*at)->next;
		*at = reference->next;
		free(reference);
	}
	drop_references(user, count);
	return sim_object_unlock(CUDA_SUCCESS);
}
