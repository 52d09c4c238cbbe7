/*
 * Time slices of the container's processes. One process at a time has the card, because the card changes contexts late
 * and at a cost. The words lie in the container's usage region. Each process takes the time slice by itself, when no
 * process holds it or its holder is overdue.
 *
 * Belongs here: which process of the container may launch. Not which container may (compute/container_slice.h).
 */
#ifndef VCUDA_PROCESS_SLICE_H
#define VCUDA_PROCESS_SLICE_H

#include "compute/token_bucket.h"

#define GRACE (150 * NS_PER_US)       /* time for an idle holder to go on: changing contexts costs */
#define LATE_LOOK (5 * NS_PER_MS)     /* until the next look of a process that will be woken when it is next */

/* Notes, for the host, that this process wants the card's time. */
void process_slice_wants(struct token_bucket *bucket, uint64_t now);

/*
 * Notes, for the host and the container's other processes, that a launch of this process waits. Returns the futex that
 * another process wakes when this process is next.
 */
uint32_t *process_slice_wait(struct token_bucket *bucket, uint64_t now);
void process_slice_stop_waiting(struct token_bucket *bucket);

/* Whether launches of the container's other processes wait. */
bool process_slice_others_wait(const struct token_bucket *bucket);

/* Whether another process has waited longer than this one. A process that does not wait has not waited. */
bool process_slice_is_behind(const struct token_bucket *bucket);

/* Ends this process's time slice if others wait, and wakes the process that has waited longest. */
void process_slice_hand_over(struct token_bucket *bucket);

/* Prolongs the time slice while work takes longer than its estimate, for a second at most. */
void process_slice_extend(struct token_bucket *bucket, uint64_t now);

/* Whether the holder's time slice is over. */
bool process_slice_is_over(const struct token_bucket *bucket, uint64_t now);

/* Whether this process has the time slice. Takes it if it may. *again as in admission_try. */
bool process_slice_has(struct token_bucket *bucket, uint64_t now, uint64_t *again);

#endif
