/*
 * How long cuMemCreate and cuMemRelease take together: `handles THREADS ROUNDS`. So many threads make memory of 2 MiB and
 * release it, ROUNDS times each. It prints the nanoseconds of all of it, from the first call to the last one, divided by
 * the number of pairs.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { MOST = 64, SIZE = 2 << 20 };

typedef unsigned long long memory;

static int (*create)(memory *handle, size_t size, const void *properties, memory flags);
static int (*release)(memory handle);
static int (*set_current)(void *context);
static void *context;
static pthread_barrier_t barrier;
static long rounds;

static void check(int result)
{
	if (!result)
		return;
	fprintf(stderr, "result %d\n", result);
	exit(1);
}

static void *make(void *argument)
{
	static const int on_card[] = {1, 1, 1, 0, 0, 0, 0, 0};
	memory made;

	(void)argument;
	check(set_current(context));
	pthread_barrier_wait(&barrier);
	for (long round = 0; round < rounds; round++) {
		check(create(&made, SIZE, on_card, 0));
		check(release(made));
	}
	return NULL;
}

static double now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return (double)time.tv_sec * 1e9 + (double)time.tv_nsec;
}

int main(int argc, char **argv)
{
	void *cuda = dlopen("libcuda.so.1", RTLD_NOW);
	pthread_t threads[MOST];

	if (argc != 3 || !cuda)
		return 1;
	int count = atoi(argv[1]);
	rounds = atol(argv[2]);
	check(((int (*)(unsigned))dlsym(cuda, "cuInit"))(0));
	check(((int (*)(void **, int))dlsym(cuda, "cuDevicePrimaryCtxRetain"))(&context, 0));
	create = (int (*)(memory *, size_t, const void *, memory))dlsym(cuda, "cuMemCreate");
	release = (int (*)(memory))dlsym(cuda, "cuMemRelease");
	set_current = (int (*)(void *))dlsym(cuda, "cuCtxSetCurrent");
	pthread_barrier_init(&barrier, NULL, (unsigned)count + 1);
	for (int i = 0; i < count; i++)
		pthread_create(&threads[i], NULL, make, NULL);
	pthread_barrier_wait(&barrier);
	double begin = now();
	for (int i = 0; i < count; i++)
		pthread_join(threads[i], NULL);
	printf("%.1f\n", (now() - begin) / (double)(count * rounds));
	return 0;
}
