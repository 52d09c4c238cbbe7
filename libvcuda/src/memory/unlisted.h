/*
 * The part of this process's charges that NVML lists with no process: managed memory, exported memory that only
 * descriptors keep (docs/reality.md), and what launched graphs are still to take. Whoever compares the charges with NVML's
 * figure leaves it out.
 *
 * Belongs here: the sum, and showing it to the container's other processes. Not here: which memory that is.
 */
#ifndef VCUDA_UNLISTED_H
#define VCUDA_UNLISTED_H

#include <stdint.h>

void unlisted_add(int card, uint64_t bytes);
void unlisted_take(int card, uint64_t bytes);
uint64_t unlisted_bytes(int card);

#endif
