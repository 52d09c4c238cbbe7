/*
 * Loops on the card with GCC's OpenMP. With an argument it first allocates until that fails, twice.
 */
#include <omp.h>
#include <stdio.h>

#define STEP ((size_t)64 << 20)
#define MOST 4096
#define SIZE (1 << 16)

static int values[SIZE];

static void fill(void)
{
	static void *held[MOST];
	int count = 0;

	while (count < MOST && (held[count] = omp_target_alloc(STEP, 0)))
		count++;
	if (count < MOST)
		puts("refused: omp_target_alloc returned NULL");
	printf("granted %zu\n", count * STEP);
	while (count)
		omp_target_free(held[--count], 0);
}

int main(int argc, char **argv)
{
	int last = 0;

	(void)argv;
	for (int i = 0; argc > 1 && i < 2; i++)
		fill();
	values[SIZE - 1] = 7;
	for (int round = 0; round < 5; round++) {
#pragma omp target teams distribute parallel for map(tofrom : values)
		for (int i = 0; i < SIZE; i++)
			values[i] += 1;
		last = values[SIZE - 1];
	}
	printf("devices %d, copied %d\n", omp_get_num_devices(), last);
	return 0;
}
