/* Commands that take memory of each kind, and give it back. */
#ifndef SELFTEST_MEMORY_H
#define SELFTEST_MEMORY_H

void memory_alloc(void);
void memory_fill(void);
void memory_free(void);

#endif
