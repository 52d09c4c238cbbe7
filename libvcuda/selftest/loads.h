/*
 * Loads between two times: `run`. Each answers what it did: rounds done and their latency.
 *
 * A round counts if its work was done before the end, by the card's events where the program saw it later.
 * `pauses` without work, and by event, waits for an event alone.
 */
#ifndef SELFTEST_LOADS_H
#define SELFTEST_LOADS_H

void loads_flood(void);
void loads_service(void);
void loads_pauses(void);
void loads_graphs(void);
void loads_copies(void);

#endif
