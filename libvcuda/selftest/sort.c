#include <stdlib.h>

#include "sort.h"

static int compare(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return x < y ? -1 : x > y;
}

void sort_numbers(uint64_t *numbers, uint64_t count)
{
	qsort(numbers, count, sizeof *numbers, compare);
}
