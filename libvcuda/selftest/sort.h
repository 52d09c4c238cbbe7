/* Sorts numbers, least first. */
#ifndef SELFTEST_SORT_H
#define SELFTEST_SORT_H

#include <stdint.h>

void sort_numbers(uint64_t *numbers, uint64_t count);

#endif
