/* Where launches wait until the container may use the card. Every wait is bounded, and changed limits end it. */
#ifndef VCUDA_GATE_H
#define VCUDA_GATE_H

#include <stdint.h>

#include "compute/batch.h"

/* Returns the time when the launch, asked for at `now`, may be made, with its estimate reserved. */
uint64_t gate_pass(const struct launch *launch, uint64_t now);

#endif
