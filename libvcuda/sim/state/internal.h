/*
 * What state/state.c offers to the other files of state/ (the ledger, the device nodes, the time slices and the virtual
 * clock) and to nobody else. The functions for the libraries are in state/state.h, state/clock.h and state/turn.h.
 */
#ifndef SIM_INTERNAL_H
#define SIM_INTERNAL_H

#include "state/state.h"

/* Locks the ledger and stores its file. Only after SIM_OK must the caller call sim_state_unlock. */
enum sim_status sim_state_lock(struct sim_file **locked);
void sim_state_unlock(void);
/* The virtual clock within the mapped file; NULL: the state uses the wall clock. */
extern struct sim_timeline *sim_timeline;
#define SIM_FILE_OF(line) ((struct sim_file *)((char *)(line) - offsetof(struct sim_file, timeline)))
/* The descriptor of the `slots` file. Never closed. */
int sim_state_slots_fd(void);
/* Whether the profile has device nodes. */
bool sim_state_has_nodes(void);
/* Opens the `cards` file once more, for locks of its own. */
int sim_state_open_cards(void);
/* Bytes of the card that belong to no slot; forgetting memory that nobody holds. Both under the lock. */
uint64_t sim_shares_sum(const struct sim_file *file, unsigned card);
void sim_shares_bury(struct sim_file *file);
/* Claims a slot if this process has none. Under the lock. */
enum sim_status sim_slots_ensure(struct sim_file *file);
/* This process' slot; -1: it has none. */
int sim_slots_own(void);
/* Whether the owner of the slot lives. Stores the owner's pid; 0: this PID namespace cannot see it. */
bool sim_slots_lives(unsigned slot, pid_t *pid);

#endif
