/*
 * Events that processes share: the page in which they see each other's records. Under the lock, but for what a waiting
 * thread reads.
 */
#ifndef CUDA_SHARED_EVENT_H
#define CUDA_SHARED_EVENT_H

#include <stdbool.h>
#include <stdint.h>

/* Any process that has the event may write to the page, so its values are used as plain numbers only. */
struct page {
	char magic[8];
	uint64_t recorded, reached;
	int32_t recorder; /* pid of the process that recorded last */
};

struct sim_shared {
	unsigned references; /* by the event, by submitted works and by watches; under the lock */
	int fd;
	struct page *page;
};

struct sim_shared *sim_shared_event_new(void);
/* Takes the descriptor over. NULL: it is no such page. */
struct sim_shared *sim_shared_event_open(int fd);
void sim_shared_event_drop(struct sim_shared *shared);
/* The number of the last record. */
uint64_t sim_shared_event_recorded(const struct sim_shared *shared);
/* Whether the stream has come so far. A record of a process that has ended counts as reached. */
bool sim_shared_event_is_reached(const struct sim_shared *shared, uint64_t number);

#endif
