/*
 * Bytes that other processes can map, as files and as descriptors that keep them on their card.
 */
#ifndef CUDA_SHARE_H
#define CUDA_SHARE_H

#include "cuda/memory/allocation.h"

/* Moves the bytes into a file that other processes can map. -1: no memory. Under the lock. */
int sim_share_backing(struct sim_allocation *allocation);
int sim_share_create(unsigned card, size_t size);
bool sim_share_adopt(int fd, unsigned *card, size_t *size);
/* A descriptor for other processes, by which they get the file and the lock that keeps the memory. -1: an error. */
int sim_share_export(int fd, int life);
bool sim_share_import(int exported, int *fd, int *life);

#endif
