/*
 * The account of a token bucket: the tokens that time adds, and those that work uses.
 *
 * Belongs here: every change of the tokens, and of what this process has under way. Not the rate at which tokens are
 * added (compute/schedule.h), nor whether work may begin (compute/admission.h).
 */
#ifndef VCUDA_ACCOUNT_H
#define VCUDA_ACCOUNT_H

#include "compute/token_bucket.h"

/* Adds the tokens of the time that has passed. Returns whether a soft share now goes on beyond its tokens. */
bool account_refill(struct token_bucket *bucket, uint64_t now);

/* Reserves `estimate` ns in any case, even into debt. */
void account_reserve(struct token_bucket *bucket, uint64_t estimate, bool is_known, uint64_t now);

/* Takes back what was reserved for work that was not begun, and the time by which it was to end. */
void account_release(struct token_bucket *bucket, uint64_t estimate);

/* Books `more` ns for work that still runs and has taken more than was booked. */
void account_book(struct token_bucket *bucket, uint64_t more, uint64_t now);

/*
 * Completes work that used `used` and ended at `ended`. `reserved` was reserved for it, and `booked` stands in the account so
 * far.
 */
void account_complete(struct token_bucket *bucket, uint64_t reserved, uint64_t booked, uint64_t used, uint64_t ended,
		      uint64_t now);

/* Whether the end of work is looked for before it is expected: others wait for it, and it often comes early. */
bool account_ends_early(const struct token_bucket *bucket);

/*
 * Returns how often work under way is looked at that should take `expected` ns. A container whose kernels of a function take
 * times that differ would else leave the card idle from each early end to the expected one.
 */
uint64_t account_look_each(const struct token_bucket *bucket, uint64_t expected);

/* Counts the part of [from, to) that was not yet counted for any work of this process. Returns its length. */
uint64_t account_uncounted(struct token_bucket *bucket, uint64_t from, uint64_t to);

/* Moves the end of the counted time from `from` back to `to`, unless another thread has counted since. */
void account_count_back(struct token_bucket *bucket, uint64_t from, uint64_t to);

/* Notes how long a kernel took. */
void account_measured(struct token_bucket *bucket, uint64_t ns);

#endif
