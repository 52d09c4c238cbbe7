/*
 * The completion of batches: what they really used, in the card's account, and what that says of their kernels.
 *
 * Belongs here: looking at the events of batches, and dropping a context with its batches. Not how launches get into
 * batches (compute/batch.h), nor who looks, and when (compute/poller.h, compute/throttle.h).
 */
#ifndef VCUDA_BATCH_COMPLETE_H
#define VCUDA_BATCH_COMPLETE_H

#include "compute/batch.h"

/* Completes what has ended, in all contexts. Returns when to look again. UINT64_MAX: nothing is under way. */
uint64_t batch_complete_all(void);

/*
 * Whether work in another stream than the launch's should have ended long ago, and nothing has ended since. After true,
 * the answer is false until as much time has passed again.
 */
bool batch_complete_stuck_elsewhere(const struct launch *launch, uint64_t now);

/* Unlocks a context of contexts_hold(). With `is_gone`, it was destroyed, and its work under way is written off. */
void batch_complete_release_context(struct compute_context *context, bool is_gone);

/* Called in a forked child, which has nothing under way. */
void batch_complete_reset(void);

/* Called when the process ends: from now on no thread looks at an event. */
void batch_complete_stop(void);

#endif
