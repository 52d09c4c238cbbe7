/*
 * Open slices. A program whose threads wake late leaves the card idle in a slice of its own. Its container then lets others
 * work beside it. What that costs depends on the card and on the programs, so it is tried.
 *
 * Belongs here: how much of its slices the program uses, whether it is to launch ahead therefore, and whether they are to be
 * open. Not how others learn of it (compute/presence.h), nor how it launches ahead (compute/held.h). One thread at a time
 * calls these functions.
 */
#ifndef VCUDA_OPEN_SLICE_H
#define VCUDA_OPEN_SLICE_H

#include <stdbool.h>
#include <stdint.h>

/* The container has begun a slice, for which it had waited so long. */
void open_slice_begun(uint64_t waited, uint64_t now);

/* It has left its slice. `is_own`: nobody else worked in it. */
void open_slice_left(bool is_own, uint64_t now);

/* Whether a slice of its own has lasted long enough to show how much of it the program uses. */
bool open_slice_is_measured(uint64_t now);

/* Whether it is time for a slice of its own: only there can kernels be measured. */
bool open_slice_own_is_due(uint64_t now);

/* Whether its threads wake so late that others in its slices may help. */
bool open_slice_may_help(void);

/* Whether its own slices have left the card idle of late, so that its program is to launch ahead. Any thread may call it. */
bool open_slice_needs_work_ahead(uint64_t now);

/* Whether the container's slices are to be open now. */
bool open_slice_is_wanted(uint64_t now);

/* Called in a forked child. */
void open_slice_reset(void);

#endif
