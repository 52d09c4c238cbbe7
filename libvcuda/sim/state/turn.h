/*
 * Whose turn it is on a card. The unit is the context: two of them never run kernels at once. Who has the turn keeps
 * it for a slice, then passes it on if others wait, first come first served; who has no more to do passes it on at
 * once. Changing contexts takes time that nobody is charged for. A holder that died is found out when its slice ends.
 *
 * Times are those of the model, which may lag behind the clock: a slice that was granted at a time in the past is
 * made up for by the one who wakes late.
 */
#ifndef SIM_TURN_H
#define SIM_TURN_H

#include "state/state.h"

struct sim_slice {
	bool mine;
	uint64_t since, until; /* of the slice, when it is mine; else `until` is when to look again */
	uint32_t *word;        /* what to wait on until then, see sim_wait_word */
	uint32_t seen;
};

/* Ask for the turn. From the first refusal on, the context waits in line. */
enum sim_status sim_turn_ask(unsigned card, uint32_t context, uint64_t now, struct sim_slice *slice);
/* At the end of its slice or of its work the holder says so: does it want more? */
enum sim_status sim_turn_pass(unsigned card, uint32_t context, uint64_t at, bool wants_more, struct sim_slice *slice);
/* The card was busy with this process' kernels. */
void sim_turn_account(unsigned card, uint64_t from, uint64_t to);
/* Kernels run since then, and were not accounted for yet; 0: none runs. */
void sim_turn_runs(unsigned card, uint64_t since);
/* Wake what waits for a turn in this process: there is something else to do. */
void sim_turn_nudge(void);

#endif
