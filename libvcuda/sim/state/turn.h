/*
 * Time slices: which context may run kernels on a card. Two contexts never run kernels at once. The holder keeps the
 * card for one slice. After that it passes the card on if other contexts wait, in the order of their arrival. A holder
 * without further work passes the card on at once. A change of context takes time that is charged to no process. If the
 * holder died or was stopped, a waiting context notices when it next looks, see `struct sim_slice`.
 *
 * Times are those of the model, which may lag behind the clock: a process that wakes late makes up for a slice that was
 * granted to it at a time in the past.
 */
#ifndef SIM_TURN_H
#define SIM_TURN_H

#include "state/state.h"

struct sim_slice {
	bool mine;
	uint64_t since, until; /* of the slice if it is mine; otherwise `until` is when to look again */
	uint32_t *word;        /* the word to wait on until then, see sim_clock_wait_word */
	uint32_t seen;
};

/* Requests a time slice. From the first refusal on, the context is in the queue. */
enum sim_status sim_turn_ask(unsigned card, uint32_t context, uint64_t now, struct sim_slice *slice);
/* The holder reports the end of its slice or of its work; `wants_more`: it has further work. */
enum sim_status sim_turn_pass(unsigned card, uint32_t context, uint64_t at, bool wants_more, struct sim_slice *slice);
/* Whether other contexts wait for the card. */
bool sim_turn_is_wanted(unsigned card);
/* Counts that the card was busy with this process' kernels. */
void sim_turn_account(unsigned card, uint64_t from, uint64_t to);
/* Kernels have run since then and were not counted yet; 0: no kernel runs. */
void sim_turn_runs(unsigned card, uint64_t since);
/* The copy engine of one direction takes a copy of this length. Returns when it begins, `time` or later. */
uint64_t sim_turn_copy(unsigned card, unsigned direction, uint64_t time, uint64_t duration);
/* Wakes the thread of this process that waits for a time slice, because it has something else to do. */
void sim_turn_nudge(void);

#endif
