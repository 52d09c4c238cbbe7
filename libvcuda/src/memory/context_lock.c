/* Implements memory/context_lock.h: a mutex for each device. A thread has one of them at a time. */
#include "memory/context_lock.h"

#include <pthread.h>

#include "shared/guard.h"
#include "shared/limits.h"
#include "vgpu_limits.h"

static pthread_mutex_t locks[VGPU_LIMITS_MAX_CARDS] = {[0 ... VGPU_LIMITS_MAX_CARDS - 1] = PTHREAD_MUTEX_INITIALIZER};
static pthread_once_t once = PTHREAD_ONCE_INIT;
static __thread pthread_mutex_t *own;
static __thread int cancel_state;

static void context_lock_after_fork(void)
{
	for (unsigned int i = 0; i < VGPU_LIMITS_MAX_CARDS; i++)
		pthread_mutex_init(&locks[i], NULL);
	own = NULL;
}

static void context_lock_watch_forks(void)
{
	pthread_atfork(NULL, NULL, context_lock_after_fork);
}

bool context_lock_take(CUdevice device)
{
	int before;

	if (device < 0 || own || guard_this_thread.inside || limits_state() != LIMITS_PRESENT)
		return false;
	pthread_once(&once, context_lock_watch_forks);
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
	pthread_mutex_t *lock = &locks[(unsigned int)device % VGPU_LIMITS_MAX_CARDS];
	pthread_mutex_lock(lock);
	own = lock;
	cancel_state = before;
	return true;
}

void context_lock_drop(bool is_locked)
{
	if (!is_locked)
		return;
	pthread_mutex_t *lock = own;
	own = NULL;
	pthread_mutex_unlock(lock);
	pthread_setcancelstate(cancel_state, NULL);
}

bool context_lock_is_own(void)
{
	return own;
}
