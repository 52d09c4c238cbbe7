/*
 * What a change of contexts costs a card: for how long it does nothing between the work of one process and the first work
 * of the next. It is measured while programs run, from work whose own time is well known, and differs from card to card.
 *
 * Belongs here: the estimate, and that the host can read it. Not what follows from it: the pauses through which a container
 * stays (compute/container_slice.h), and the shares (vgpu.config.core_schedule).
 */
#ifndef VCUDA_CHANGE_COST_H
#define VCUDA_CHANGE_COST_H

#include "compute/token_bucket.h"

/*
 * Work has ended `late` ns after its own time had passed since its launch or release; `changes`: it was the first after a
 * change. A stream takes a while to go on when its work is released: that is a part of what a change costs this container,
 * not of what the host reads.
 */
void change_cost_measured(struct token_bucket *bucket, bool changes, bool was_held, uint64_t late);

/*
 * The same where the work's own time varies. What is guessed so counts where nothing was measured, and only as far as it is
 * more than such times differ by chance. `late` may be less than 0.
 */
void change_cost_guessed(struct token_bucket *bucket, int64_t late);

/* Returns the ns that a change takes this container, within bounds. */
uint64_t change_cost(const struct token_bucket *bucket);

/* The same without what a stream takes to see that held work was released. */
uint64_t change_cost_of_card(const struct token_bucket *bucket);

#endif
