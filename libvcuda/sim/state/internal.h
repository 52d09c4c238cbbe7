/* What state/state.c lends to the ledger, the nodes and the virtual clock. */
#ifndef SIM_INTERNAL_H
#define SIM_INTERNAL_H

#include "state/state.h"

/* Take the lock on the ledger and give its file; on SIM_OK only, sim_unlock has to follow. */
enum sim_status sim_lock(struct sim_file **locked);
void sim_unlock(void);
/* The virtual clock, within the mapped file; NULL: it is the wall's. */
extern struct sim_timeline *sim_timeline;
#define SIM_FILE_OF(line) ((struct sim_file *)((char *)(line) - offsetof(struct sim_file, timeline)))
/* The descriptor of the `slots` file. Never closed. */
int sim_slots_fd(void);
/* Does the profile have device nodes? */
bool sim_has_nodes(void);
/* This process' slot, -1: none; is the owner of one alive, and which pid has it (0: not to be seen from here)? */
int sim_own_slot(void);
bool sim_slot_lives(unsigned slot, pid_t *pid);
/* Forget the slot of the process that this one was forked from. */
void sim_ledger_forked(void);

#endif
