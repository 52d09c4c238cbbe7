/*
 * The constants of the time slices between containers, each with its source. docs/compute-limit.md lists them with the
 * others.
 */
#ifndef VCUDA_SLICE_PARAMETERS_H
#define VCUDA_SLICE_PARAMETERS_H

#include "driver/clock.h"

/*
 * A change of contexts takes the hardware some 50 us (docs/decisions/measurements-compute-limit.md). libvcuda measures it
 * on each card while it runs (compute/change_cost.h); this is what it begins with, and its bounds. A pause that is shorter
 * than SLICE_WORTH of it costs less than two changes, since the next container has to launch as well.
 */
#define SLICE_CHANGE (50 * NS_PER_US)
#define SLICE_CHANGE_LEAST (20 * NS_PER_US)
#define SLICE_CHANGE_MOST (1500 * NS_PER_US)
#define SLICE_WORTH(change) ((change) * 8 / 5)
#define SLICE_LONGEST_PAUSE(change) \
	SLICE_WORTH(4 * (change)) /* in the mean of the latest pauses: a long one is soon forgotten */

/*
 * These four add up to what a request waits beside its neighbours' longest kernel: at most 1.8 ms, for a bound of 2 ms.
 * Work under way hides the launch's latency (5 us) and the poller's (50 to 100 us).
 */
#define SLICE_AHEAD NS_PER_MS               /* work under way, while others may come */
#define SLICE_AHEAD_LONG (NS_PER_MS / 2)    /* left of a longer kernel when the next is launched; and lateness */
#define SLICE_LOOK (250 * NS_PER_US)        /* between two looks at the queue: one system call each */
#define SLICE_STAY (200 * NS_PER_US)        /* without work and without others that wait */

/*
 * The same for a program that works on several cards, of which another one waits for it: a thread that launches all of a
 * round on one card before it launches on the next would else keep only one of them busy.
 */
#define SLICE_AHEAD_CARDS (10 * NS_PER_MS)

/*
 * The same while the only other container waits already, so that nobody can come, and kernels take what they are known to
 * take: fewer wake-ups. With SLICE_LEASE it is less than what counts as a long launch.
 */
#define SLICE_AHEAD_AWAITED (3 * NS_PER_MS)

/* The same in an open slice: others work beside it, and its program, which launches seldom, prepares its next work. */
#define SLICE_AHEAD_OPEN (20 * NS_PER_MS)

/*
 * The same for a program that answers requests. If the next one came meanwhile, its launch follows at once. Without this
 * it would wait for a neighbour's kernel again, and requests would pile up.
 */
#define SLICE_LINGER (40 * NS_PER_US)

/*
 * Kernels of one function may take very different times, as in a model's prompts and its single steps. Where batches
 * end so much earlier than estimated, on average, more is under way.
 */
#define SLICE_UNSURE 64                     /* of 256 */
#define SLICE_AHEAD_UNSURE (2 * NS_PER_MS)
#define SLICE_EARLY 8 /* of 256: by so much batches end before their estimate, so that ends are looked for early */

/*
 * Tokens beyond those of its share that a soft share may have while nobody else wants the card. It keeps them when others
 * come, so they are few.
 */
#define SLICE_BORROWED (250 * NS_PER_US)

/* A slice in borrowed time is worth its two changes, if nobody who waits has paused to wait for requests. */
#define SLICE_BORROWED_LEAST NS_PER_MS

/*
 * The most by which a container may lag behind its share, and the time in which most of a lag is forgotten. And so many times
 * what its tokens would last for.
 */
#define SLICE_LAG NS_PER_S
#define SLICE_LAG_OF_TOKENS 8
#define SLICE_LAG_HELD (SLICE_LAG / 6) /* who lags by more has its launches held (compute/held.h) */

/* A program that paused for so long answers requests: its next launch comes before work that never pauses. */
#define SLICE_PAUSE NS_PER_MS
#define SLICE_REQUEST (10 * NS_PER_MS) /* of the card's time, from such a pause on */

/* Waiting. A container that leaves wakes the next one, but a killed one does not, and a wake can be lost. */
#define SLICE_LOOK_AS_NEXT (500 * NS_PER_US)
#define SLICE_LOOK_AGAIN (4 * NS_PER_MS)
#define SLICE_MOVE (25 * NS_PER_MS) /* until a process that waits takes another place: a system call or two */

/*
 * A lease: work under way ends before it. A holder that was stopped keeps its neighbours waiting for these two and
 * LEASE_GRACE of compute/presence.c. The poller says the next lease a millisecond before the last one ends.
 */
#define SLICE_LEASE (4 * NS_PER_MS)        /* beyond the expected end */
#define SLICE_LEASE_LEAST (2 * NS_PER_MS)  /* beyond the expected end: below this it is said anew */
#define SLICE_LEASE_UNKNOWN (100 * NS_PER_MS) /* for a kernel that was never measured, in all */

/* For so long it runs beside launches that take long. Requests that have gathered behind one leave no pause. */
#define SLICE_URGENT_FOR (500 * NS_PER_MS)

/* Work under way that lasts for longer is no reason to wait for a program that answers requests. */
#define SLICE_LONG (4 * NS_PER_MS)

/*
 * Open slices (compute/open_slice.h): tried where threads wake so late. Where more than the first part of own slices is idle,
 * launches are held. Shorter slices are of programs that answer requests.
 */
#define SLICE_IDLE_PART 6
#define SLICE_OPEN_UNSURE 40 /* of 256, as SLICE_UNSURE */
#define SLICE_THREADS_LATE (NS_PER_MS / 2)
#define SLICE_OPEN_LEAST (3 * NS_PER_MS)
#define SLICE_OPEN_AFTER (8 * NS_PER_MS)
#define SLICE_OPEN_MEAN (200 * NS_PER_MS) /* of slices that count */
#define SLICE_OPEN_FOR (2 * NS_PER_S)     /* then comes a slice of its own */
#define SLICE_AHEAD_FOR (10 * NS_PER_S) /* since own slices left the card idle: launches are held (compute/held.h) */
#define SLICE_OPEN_CHANGE (250 * NS_PER_US) /* requests that enter would change contexts all the time, at this cost */

/* Several periods, so that what it gets in a trial is no chance; then so long in the better mode, longer each time. */
#define SLICE_TRIAL (500 * NS_PER_MS)
#define SLICE_TRIAL_LEAST (2 * NS_PER_S)
#define SLICE_TRIAL_MOST (32 * NS_PER_S)

/* Who is next has been woken, and has to launch: some 100 us. It may have been stopped. */
#define SLICE_LATE (2 * NS_PER_MS)

/* For how long a free card is left to others, in all: so long at once, and one part of the time. */
#define SLICE_LEFT_FREE (6 * NS_PER_MS)
#define SLICE_LEFT_FREE_PART 48

/* A container that asked for an early end did not come: nobody gets early ends, twice as long each time. */
#define SLICE_NO_EARLY_END (50 * NS_PER_MS)
#define SLICE_NO_EARLY_END_MOST (60 * NS_PER_S)

/* The longest waits for others, beyond what is theirs: a kernel of 2 s, and with several neighbours two of them. */
#define SLICE_LONGEST_WAIT (2800 * NS_PER_MS)
#define SLICE_LONGEST_WAIT_OF_MANY (5 * NS_PER_S)
#define SLICE_DISTRUST (60 * NS_PER_S) /* how long this process then waits for nobody; twice as long each time */
#define SLICE_DISTRUST_MOST (960 * NS_PER_S)
#define SLICE_HIDDEN NS_PER_S /* the same after a lock that hides others */
#define SLICE_EXTRA_PATIENCE (100 * NS_PER_MS)
#define SLICE_FORGOTTEN (20 * NS_PER_MS) /* a lock not seen for this long may have been dropped meanwhile */

/* What the tokens of a container that waits for others may grow to: the longest wait for others. */
#define SLICE_MOST_OWED (10 * NS_PER_S)
#define SLICE_ABSENT (100 * NS_PER_MS) /* a process that did not look for so long was stopped: nothing is owed to it */

#endif
