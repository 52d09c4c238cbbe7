/*
 * Whether work of a given length may begin now: there are tokens, there is room beside what is under way, this process
 * has a time slice (compute/process_slice.h), and so has the container (compute/container_slice.h).
 *
 * Belongs here: the order of these conditions, and how much may be under way. Not the tokens (compute/account.h), nor
 * how to wait (compute/throttle.h).
 */
#ifndef VCUDA_ADMISSION_H
#define VCUDA_ADMISSION_H

#include "compute/estimates.h"
#include "compute/token_bucket.h"

struct launch;

/*
 * Whether the program may launch far ahead, as it does without a limit: it prepares its next work meanwhile. Not beside other
 * containers, nor where another process of its own has had the card within a second: those would wait for all of that. Not
 * for a soft share, which would owe what it has launched in borrowed time.
 */
bool admission_may_launch_far_ahead(const struct token_bucket *bucket, uint64_t now);

/* Reserves the launch's estimate if it may begin now. If not, *again is when to try again. */
bool admission_try(const struct launch *launch, uint64_t now, uint64_t *again);

/*
 * Reserves a local slice and returns its ns: launches may take it until *until without any other call. 0: there is
 * none, because something that would hold up launches is near.
 */
uint64_t admission_take_local_slice(struct token_bucket *bucket, uint64_t now, uint64_t *until);

/* Notes that a launch is requested, and for how long the program had no work before it. */
void admission_note_pause(struct token_bucket *bucket, uint64_t now);

/* Whether launches of the container's other processes wait, or other containers. */
bool admission_others_wait(const struct token_bucket *bucket);

/*
 * Whether another process of the container has work under way that should have ended: that work may wait for what waits
 * here. Only one waiting launch gets true. After that the answer is false until as much time has passed again.
 */
bool admission_others_stuck(const struct token_bucket *bucket, uint64_t now);

#endif
