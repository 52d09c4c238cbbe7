/*
 * Threads of two processes that make and destroy contexts and allocate memory in them, all at the same time:
 * `context_race MAKERS FILLERS HOLDERS ROUNDS SIZE`. Each process has so many threads of each kind:
 *   makers   make a context, allocate SIZE bytes in it, and destroy it: one thread by cuCtxCreate, the next one by
 *            retaining the primary context, and so on in turn
 *   fillers  the same, but allocate until a call is refused, and free one half before the context's end
 *   holders  allocate and free in a context that they keep to the end
 * A call that is refused for want of memory is not an error. When all contexts are gone, it prints the numbers of the
 * contexts that were made, of those that were refused, and of the calls that got memory. It ends when its input ends.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "linked.h"

typedef unsigned long long memory;

enum { THREADS = 64, HELD = 4096 };

struct counts {
	atomic_long made, refused, granted;
};

struct thread {
	pthread_t id;
	bool is_primary;
	long most; /* allocations in each context */
};

static struct counts *counts; /* of both processes */
static long rounds;
static size_t size;
static atomic_bool is_over;

static void check(int result, const char *what)
{
	if (!result)
		return;
	fprintf(stderr, "%s: %d\n", what, result);
	_exit(1);
}

/* False: it was refused. */
static bool is_granted(int result, const char *what)
{
	if (result != CUDA_ERROR_OUT_OF_MEMORY)
		check(result, what);
	return !result;
}

static bool make(const struct thread *thread, CUcontext *context)
{
	int result = thread->is_primary ? cuDevicePrimaryCtxRetain(context, 0) : cuCtxCreate_v2(context, 0, 0);
	bool made = is_granted(result, "a context");

	counts->made += made;
	counts->refused += !made;
	if (made)
		check(cuCtxSetCurrent(*context), "cuCtxSetCurrent");
	return made;
}

static void end(const struct thread *thread, CUcontext context)
{
	check(cuCtxSetCurrent(NULL), "cuCtxSetCurrent");
	if (thread->is_primary)
		check(cuDevicePrimaryCtxRelease_v2(0), "cuDevicePrimaryCtxRelease");
	else
		check(cuCtxDestroy_v2(context), "cuCtxDestroy");
}

static bool allocate(memory *pointer)
{
	bool granted = is_granted(cuMemAlloc_v2(pointer, size), "cuMemAlloc");

	counts->granted += granted;
	return granted;
}

/* Memory of a primary context has to be freed: the context may live on. */
static void use(const struct thread *thread, bool frees)
{
	static __thread memory held[HELD];
	long count = 0;

	while (count < thread->most && allocate(&held[count]))
		count++;
	for (long i = 0; i < count; i++)
		if (frees || thread->is_primary || i % 2)
			check(cuMemFree_v2(held[i]), "cuMemFree");
}

static void *maker_or_filler(void *argument)
{
	CUcontext context;

	for (long round = 0; round < rounds; round++) {
		if (!make(argument, &context))
			continue;
		use(argument, round % 2);
		end(argument, context);
	}
	return NULL;
}

static void *holder(void *argument)
{
	CUcontext context;
	bool made;

	while (!(made = make(argument, &context)) && !is_over)
		usleep(1000);
	if (!made)
		return NULL;
	while (!is_over)
		use(argument, true);
	end(argument, context);
	return NULL;
}

static void work(const int numbers[3])
{
	void *(*const kinds[])(void *) = {maker_or_filler, maker_or_filler, holder};
	struct thread threads[THREADS];
	int count = 0, held = 0;

	check(cuInit(0), "cuInit");
	for (int kind = 2; kind >= 0; kind--) {
		for (int i = 0; i < numbers[kind] && count < THREADS; i++, count++) {
			threads[count].is_primary = i % 2;
			threads[count].most = kind ? HELD : 1;
			pthread_create(&threads[count].id, NULL, kinds[kind], &threads[count]);
		}
		held = kind == 2 ? count : held;
	}
	for (int i = held; i < count; i++)
		pthread_join(threads[i].id, NULL);
	is_over = true;
	for (int i = 0; i < held; i++)
		pthread_join(threads[i].id, NULL);
}

int main(int argc, char **argv)
{
	int status = 0;
	char byte;

	if (argc != 6)
		return 1;
	counts = mmap(NULL, sizeof(*counts), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	const int numbers[] = {atoi(argv[1]), atoi(argv[2]), atoi(argv[3])};
	rounds = atol(argv[4]);
	size = (size_t)atol(argv[5]);
	pid_t child = fork();
	work(numbers);
	if (!child)
		_exit(0);
	if (waitpid(child, &status, 0) != child || status)
		return 1;
	printf("%ld %ld %ld\n", counts->made, counts->refused, counts->granted);
	fflush(stdout);
	while (read(STDIN_FILENO, &byte, 1) > 0)
		;
	return 0;
}
