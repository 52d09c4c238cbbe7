/* One kernel or one graph of them, of a length in ns. */
#ifndef SELFTEST_LAUNCH_H
#define SELFTEST_LAUNCH_H

#include <stdint.h>

#include "driver.h"

CUresult launch_kernel(uint64_t ns);
/* Makes a graph of kernels, one after another. */
CUresult launch_graph_of(uint64_t nodes, uint64_t ns, CUgraphExec *executable);

#endif
