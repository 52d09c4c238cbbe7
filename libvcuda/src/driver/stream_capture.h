/*
 * Captures of streams: what is launched into a captured stream does not run, and an event that is recorded there is the
 * graph's and must not be asked for.
 *
 * While none is under way, asking costs one load.
 */
#ifndef VCUDA_CAPTURES_H
#define VCUDA_CAPTURES_H

#include <stdbool.h>

#include "cuda_abi.h"

/* Captures have begun and ended. One that is counted too long only makes others ask the driver. */
void captures_change(int by);

/* In a forked child: there are none. */
void captures_reset(void);

/* Whether some thread captures. */
bool captures_any(void);

/* Whether the stream is captured, or cannot be asked. */
bool captures_has(CUstream stream);

#endif
