/* Commands that make what a driver may take memory for, beside what is asked for: `make`. It is kept. */
#ifndef SELFTEST_OVERHEAD_H
#define SELFTEST_OVERHEAD_H

void overhead_contexts(void);
void overhead_streams(void);
void overhead_graph(void);
void overhead_stack(void);
void overhead_launch(void);

#endif
