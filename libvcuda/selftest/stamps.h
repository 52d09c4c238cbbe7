/*
 * Raw times: `stamps` and `cost`. hook/vgpu/node/selftest/card.py makes figures of them.
 *
 * Where kernels compute, one long kernel writes when it ran, by the card's clock, which all contexts share; else short
 * kernels follow one another, and events say when each ended, on the program's clock.
 */
#ifndef SELFTEST_STAMPS_H
#define SELFTEST_STAMPS_H

void stamps_take(void);
void stamps_cost(void);

#endif
