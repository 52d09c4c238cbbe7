/*
 * Who is at work on the container's cards, and who stands in line for them, as all containers of the node tell each other
 * by locks on a file that each of them has and none can write (VGPU_PRESENCE_PATH): a read lock on a byte of its own says
 * that a container is at work on a card, one on a byte that is a time says since when it waits. The kernel keeps them:
 * the dead hold none, nobody can take another's away, and all that can be forged is one's own.
 *
 * The container is present on all of its cards together, so that kernels that wait for each other across them run together.
 */
#ifndef VCUDA_PRESENCE_H
#define VCUDA_PRESENCE_H

#include <stdbool.h>
#include <stdint.h>

/* Whether there is such a file; looks once. */
bool presence_is_told(void);

/* False: the program closed the file, which is open again; what this process had said is taken back. */
bool presence_is_kept(void);

/* This process says, or takes back, that the container is at work on its cards. */
void presence_hold(void);
void presence_drop(void);

/* Whether another container is at work on one of them, and where that is told. */
bool presence_of_others(uint64_t *where);

/* All places where that is told, as far as there is room. */
enum { PRESENCE_LISTED = 8 };
unsigned int presence_list_others(uint64_t where[PRESENCE_LISTED]);

/* This process stands in line since `time`, of the host's clock; leaves it. */
void presence_queue(uint64_t time);
void presence_unqueue(uint64_t time);

/* Whether somebody stands in line for one of the cards since before `time` (UINT64_MAX: at all), and where that is told. */
bool presence_waiting_before(uint64_t time, uint64_t *where);

/* What is told there is not heeded any more, until it is taken back. True: something is ignored now. */
void presence_ignore(uint64_t where);
bool presence_ignores(void);

/* What to wait on, unchanged, for others to go: they wake who waits. */
uint32_t *presence_word(void);
void presence_wake(void);

/* In a forked child: it holds nothing. */
void presence_reset(void);

#endif
