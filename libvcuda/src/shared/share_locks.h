/*
 * Which memory the container's processes share with each other: locks on bytes of files, one for each memory that a process
 * has exported and one for each that a process has imported. The kernel drops them when the process ends, executes another
 * program or is killed. It looks for a lock through all of a file, so they are spread over VGPU_USAGE_SHARES files beside
 * the usage region, or are in the region's own where these are missing.
 *
 * Belongs here: these locks, and the sum of what is imported and no longer charged to its exporter. Not here: what is
 * charged for it (memory/sharing.h).
 */
#ifndef VCUDA_SHARE_LOCKS_H
#define VCUDA_SHARE_LOCKS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct share {
	uint32_t id;   /* the same for exporter and importer */
	int card;      /* its place in the usage region */
	uint64_t size; /* bytes, rounded up to 64 KiB by a lock */
};

enum share_role { SHARE_EXPORTED, SHARE_IMPORTED };

/*
 * Takes the lock. The result holds it until share_locks_drop, with the same role and id. NULL: the lock is refused or is not
 * kept, or no process has the memory as its exporter or as another importer. That is looked at with the lock held: an
 * exporter that ends before the lock does not see it.
 */
void *share_locks_take(enum share_role role, const struct share *share);
void share_locks_drop(void *held, enum share_role role, uint32_t id);

/* Whether a process of the container has exported the memory and is charged for it. */
bool share_locks_find(uint32_t id, struct share *share);

/*
 * The bytes on the card that processes have imported and whose exporter has freed it or has ended: they are in nobody's
 * slot. `fresh`: reads the locks again, also if no process has reported a change.
 */
uint64_t share_locks_orphans(int card, bool fresh);

/* A tag on a descriptor of exported memory, which every process sees that gets the descriptor. */
void share_locks_tag(int fd, const struct share *share);
bool share_locks_read_tag(int fd, struct share *share);

#endif
