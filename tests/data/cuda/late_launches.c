/*
 * Launches that return from the driver late or fail there, while other threads go on in the same stream: one case a run
 * (its first argument), on stepped_driver.c. In each the account has to be right to the nanosecond: what the container may
 * use, what it used, and what is reserved for work under way together never change while no time is added, and nothing
 * is reserved when nothing is under way. Exits with 1 and a line on stderr where that is not so.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <sys/mman.h>

#include "cases.h"
#include "stepped_driver.h"
#include "vgpu_usage.h"

#define MS 1000000
#define KERNEL 437500 /* 7/16 ms, which a float has exactly; two of them do not fill a batch, three do */
#define RESERVED ((KERNEL / VGPU_USAGE_TIME_UNIT + 1) * VGPU_USAGE_TIME_UNIT)
#define ROUNDS 12     /* after which its duration is certain */
#define PATIENCE 30   /* s */

#define EXPECT_EQUAL(a, b) expect_equal(__LINE__, #a, (int64_t)(a), (int64_t)(b))

static struct stepped *driver;
static const struct vgpu_usage *region;
static CUcontext context = (CUcontext)&context;

static struct stepped_kernel kernel = {.ns = KERNEL}, late = {.ns = KERNEL};
static struct stepped_stream stream, other, beginning;

static void expect_equal(int line, const char *what, int64_t is, int64_t expected)
{
	if (is == expected)
		return;
	fprintf(stderr, "line %d: %s is %" PRId64 ", not %" PRId64 "\n", line, what, is, expected);
	_exit(1);
}

/* ---- what the account says ---- */

static uint64_t in_flight(void)
{
	uint64_t sum = 0;

	for (unsigned int i = 0; i < VGPU_USAGE_SLOTS; i++)
		sum += (uint64_t)region->flights[0][i].in_flight * VGPU_USAGE_TIME_UNIT;
	return sum;
}

static uint64_t used(void)
{
	return region->times[0].used;
}

static int64_t sum(void)
{
	return region->times[0].level + (int64_t)used() + (int64_t)in_flight();
}

/* ---- what happens ---- */

static CUresult launch(struct stepped_kernel *function, struct stepped_stream *where)
{
	return CALL(cuLaunchKernel, (CUfunction)function, 1, 1, 1, 1, 1, 1, 0, (CUstream)where, NULL, NULL);
}

static void make(struct stepped_stream *where)
{
	CHECK(launch(&kernel, where) == CUDA_SUCCESS);
}

/* So much later, libvcuda looks at what has ended. */
static void pass(uint64_t ns)
{
	driver->now += ns;
	driver->look();
}

/* What comes next in the stream waits for the program, so that the batch ends here. */
static void end_batch(struct stepped_stream *where)
{
	OK(cuLaunchHostFunc, (CUstream)where, NULL, NULL);
}

struct caller {
	pthread_t id;
	CUcontext context;
	struct stepped_stream *stream;
	CUresult result;
};

static void *launch_late(void *argument)
{
	struct caller *caller = argument;

	OK(cuCtxSetCurrent, caller->context);
	caller->result = launch(&late, caller->stream);
	return NULL;
}

/* A launch by another thread, which is in the driver when this returns. */
static void enter(struct stepped_stream *where, struct caller *caller)
{
	*caller = (struct caller){.context = context, .stream = where};
	late.has_entered = false;
	late.is_held = true;
	CHECK(pthread_create(&caller->id, NULL, launch_late, caller) == 0);
	while (!late.has_entered)
		usleep(100);
}

static void come_back(struct caller *caller, CUresult result)
{
	late.result = result;
	late.is_held = false;
	CHECK(pthread_join(caller->id, NULL) == 0);
	CHECK(caller->result == result);
	late.result = CUDA_SUCCESS;
}

static void find_driver(void)
{
	open_libcuda();
	void *real = dlopen(VGPU_REAL_DIR "/libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
	CHECK(real);
	driver = dlsym(real, "stepped");
	CHECK(driver);
}

static void map_region(void)
{
	int fd = open(VGPU_USAGE_PATH, O_RDONLY | O_CLOEXEC);

	CHECK(fd >= 0);
	region = mmap(NULL, sizeof(*region), PROT_READ, MAP_SHARED, fd, 0);
	CHECK(region != MAP_FAILED);
	close(fd);
}

/* What the kernels take is known after this, and nothing is under way. */
static void begin(void)
{
	find_driver();
	OK(cuInit, 0);
	OK(cuCtxSetCurrent, context);
	for (int i = 0; i < 2 * ROUNDS; i++) {
		CHECK(launch(i % 2 ? &kernel : &late, &beginning) == CUDA_SUCCESS);
		pass(5 * MS);
	}
	map_region();
	EXPECT_EQUAL(in_flight(), 0);
}

/* ---- the cases ---- */

/* The reservation of a launch that fails goes back once, though another thread has ended its batch meanwhile. */
static void fails_after_the_end(void)
{
	struct caller caller;

	make(&stream);
	enter(&stream, &caller);
	make(&other);
	int64_t before = sum();
	uint64_t used_before = used();
	end_batch(&stream);
	end_batch(&other);
	EXPECT_EQUAL(in_flight(), 3 * RESERVED);
	come_back(&caller, CUDA_ERROR_UNKNOWN);
	EXPECT_EQUAL(in_flight(), 2 * RESERVED);
	pass(KERNEL);
	EXPECT_EQUAL(sum(), before);
	EXPECT_EQUAL(in_flight(), 0);
	EXPECT_EQUAL(used(), used_before + KERNEL); /* beside each other */
}

/* The same of a launch that was alone in its batch. */
static void fails_alone_after_the_end(void)
{
	struct caller caller;

	enter(&stream, &caller);
	int64_t before = sum();
	end_batch(&stream);
	come_back(&caller, CUDA_ERROR_UNKNOWN);
	EXPECT_EQUAL(sum(), before);
	EXPECT_EQUAL(in_flight(), 0);
	make(&stream);
	end_batch(&stream);
	pass(KERNEL);
	EXPECT_EQUAL(in_flight(), 0);
}

/* The launch that opened the batch fails; another thread's is in it, and is counted. */
static void first_fails(void)
{
	struct caller caller;

	enter(&stream, &caller);
	make(&stream);
	int64_t before = sum();
	uint64_t used_before = used();
	come_back(&caller, CUDA_ERROR_UNKNOWN);
	end_batch(&stream);
	pass(KERNEL);
	EXPECT_EQUAL(sum(), before);
	EXPECT_EQUAL(in_flight(), 0);
	EXPECT_EQUAL(used(), used_before + KERNEL);
}

/* A launch is made when another thread has ended its batch, which has so many others: its work counts nevertheless. */
static void is_late(int others)
{
	struct caller caller;

	for (int i = 0; i < others; i++)
		make(&stream);
	enter(&stream, &caller);
	int64_t before = sum();
	uint64_t used_before = used(), all = (uint64_t)(others + 1) * KERNEL;
	end_batch(&stream);
	come_back(&caller, CUDA_SUCCESS);
	pass(all);
	EXPECT_EQUAL(sum(), before);
	EXPECT_EQUAL(in_flight(), 0);
	EXPECT_EQUAL(used(), used_before + all);
}

static void first_is_late(void)
{
	is_late(0);
}

static void second_is_late(void)
{
	is_late(1);
}

/* A launch that fills its batch is in the driver until that batch is over and another stream has its place. */
static void lose_place(struct caller *caller)
{
	make(&stream);
	make(&stream);
	enter(&stream, caller);
	end_batch(&stream);
	pass(2 * KERNEL);
	EXPECT_EQUAL(in_flight(), 0);
	make(&other);
}

/* The caller's launch fails, which takes nothing back of the other stream's. */
static void fail_beside_other(struct caller *caller)
{
	int64_t before = sum();
	uint64_t used_before = used(), reserved = in_flight();
	come_back(caller, CUDA_ERROR_UNKNOWN);
	EXPECT_EQUAL(in_flight(), reserved);
	end_batch(&other);
	pass(KERNEL);
	EXPECT_EQUAL(sum(), before);
	EXPECT_EQUAL(in_flight(), 0);
	EXPECT_EQUAL(used(), used_before + KERNEL);
}

static void ends_no_other_batch(void)
{
	struct caller caller;

	lose_place(&caller);
	stream.events = other.events = 0;
	come_back(&caller, CUDA_SUCCESS);
	make(&other); /* joins, for which no event is needed */
	EXPECT_EQUAL(stream.events, 0);
	EXPECT_EQUAL(other.events, 0);
}

static void undoes_no_other_launch(void)
{
	struct caller caller;

	lose_place(&caller);
	fail_beside_other(&caller);
}

/* The launch's context has gone meanwhile, and another has its record. */
static void ends_no_other_contexts_batch(void)
{
	static CUcontext first = (CUcontext)&first, second = (CUcontext)&second;
	struct caller caller;

	context = first;
	OK(cuCtxSetCurrent, first);
	enter(&stream, &caller);
	OK(cuCtxDestroy_v2, first);
	OK(cuCtxSetCurrent, second);
	make(&other);
	fail_beside_other(&caller);
}

int main(int argc, char **argv)
{
	static const struct named_case cases[] = {
		{"fails after the end", fails_after_the_end},
		{"fails alone after the end", fails_alone_after_the_end},
		{"first fails", first_fails},
		{"first is late", first_is_late},
		{"second is late", second_is_late},
		{"ends no other batch", ends_no_other_batch},
		{"undoes no other launch", undoes_no_other_launch},
		{"ends no other context's batch", ends_no_other_contexts_batch},
		{NULL, NULL},
	};
	const struct named_case *chosen = find_case(cases, argc, argv);

	alarm(PATIENCE);
	begin();
	chosen->run();
	_exit(0);
}
