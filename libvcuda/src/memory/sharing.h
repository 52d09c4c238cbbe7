/*
 * Memory that processes share: what keeps it on the card, and who is charged for it.
 *
 * Belongs here: the shares of an entry of memory/allocations.h, and the end of its charge, which may outlive its handle
 * because a descriptor of the memory is open somewhere. Not here: the locks by which processes see each other's shares
 * (shared/share_locks.h), what is bound to the memory (memory/physical.h), the calls (hooks/share.c).
 *
 * The exporter is charged. It holds a lock for the memory as long as that is so, and an importer holds another one. What
 * only importers hold counts for the container beside its slots. An import whose exporter is not found, because it is
 * dead or in another container, is charged to the importer.
 */
#ifndef VCUDA_SHARING_H
#define VCUDA_SHARING_H

#include <stdbool.h>
#include <stdint.h>

#include "memory/allocations.h"

enum { SHARED_BYTES = 64 }; /* of an IPC handle, a fabric handle, the data of a pool's pointer */

struct share_hold;

/* The memory of the entry was exported, as a descriptor or as bytes. */
void sharing_export_descriptor(enum allocation_kind kind, uint64_t key, int fd);
void sharing_export_bytes(enum allocation_kind kind, uint64_t key, const void *bytes);

/*
 * The same for memory of a pool, for which the pool is charged: on the card at this place. The share ends when the program
 * frees the memory.
 */
void sharing_export_pointer(CUdeviceptr pointer, int card, uint64_t size, const void *bytes);
void sharing_pointer_freed(CUdeviceptr pointer);

/*
 * The share of memory that is imported. Call it before the driver does, which may close the descriptor. NULL: no process
 * of this container is charged for the memory, and *size is what its exporter has said, or 0.
 */
struct share_hold *sharing_import_descriptor(int fd, uint64_t *size);
struct share_hold *sharing_import_bytes(const void *bytes);

/* Ends the shares. What importers hold counts for the container from now on: call it before the charge is given back. */
void sharing_drop(struct share_hold *shares);

/* Gives back the entry's charge and frees the entry. What a descriptor holds stays charged until that is closed. */
void sharing_release(struct allocation *entry);

/* Gives back charges for exported memory that no descriptor holds any more. False: there were none. */
bool sharing_reclaim(void);

#endif
