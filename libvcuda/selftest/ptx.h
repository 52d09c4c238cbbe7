/*
 * The self-test's kernels, as text that the driver's own compiler makes code of. ISA 6.0 is CUDA 9.0's, and code for
 * sm_50 runs on every later card: so on cards from Maxwell to Blackwell, with the drivers that vgpu knows.
 *
 *   spin_ns(ns, gap)
 *       runs for `ns` of the card's time. A step of the card's clock of more than `gap` is time in which the kernel was
 *       stopped, and does not count.
 *   trace_ns(ns, gap, out, most)
 *       writes when it ran, until `ns` have passed: the count of intervals at `out`, then begin and end of each, at most
 *       `most` of them.
 *   clock_ns(ns, out)
 *       writes the smallest step of the card's clock within `ns`.
 *
 * A kernel whose length was measured by rounds would depend on the card's clock rate, which changes under load.
 * The simulator computes nothing: it lets a kernel whose name ends in _ns last as long as its first argument says.
 */
#ifndef SELFTEST_PTX_H
#define SELFTEST_PTX_H

#define PTX_VERSION "6.0"
#define PTX_TARGET "sm_50"

extern const char ptx_text[];

#endif
