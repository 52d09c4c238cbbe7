/*
 * A program that works on a card: cores_load [key=value]...
 *
 *   kernel=fixed:NS | lognormal:MEDIAN:SIGMA_PERMILLE:MAX | bimodal:NS:NS:PERMILLE_OF_THE_SECOND
 *   launches=N        per round and stream (default 1)
 *   wait=WAY          after a round until it is done: stream (default), context, event, query, stream_query, thread,
 *                     host (a function), flag (in the host's memory); 0: launch without waiting
 *   gap=NS rounds=N   sleep after a round; end after so many rounds (0: at `end`)
 *   arrivals=FILE     a round for each request of the file, see requests.c
 *   replay=FILE       a recorded program instead, see replay.c
 *   on=NS off=NS      rounds for so long, then no work for so long, in turn from `begin` on
 *   streams=N threads=N graph=N     graph: launch graphs of so many kernels instead
 *   copy=BYTES memset=BYTES         in addition, in each round and stream
 *   apart=1                         the copy in a stream of its own: it waits for the kernels, and the next ones for it
 *   meet=KEY parties=N              kernels that wait until so many with this key have begun
 *   grid=N block=N seed=N
 *   card=N cards=N                  the first card; the streams are spread over so many cards in turn
 *   origin=NS begin=NS end=NS       clock times: `origin` (0: when the program is ready), then relative to it
 *   warm=NS                         CPU time counts from then on
 *   trace=NS                        report when launches returned that were delayed by at least so much
 *   probe=NS                        no work: waits on futexes until each multiple of NS, and reports when they return
 *   gate=NS gate_from=BYTE          no work: holds its presence lock every other NS, and reports when
 *   burn=N                          so many further threads compute for ever
 *   peer=NAME limit=PERCENT         another system's limiter in the launch path
 *   group=PID                       the process group to join; 0: a group of its own
 *   lie_from=BYTE ...               see lies.c
 *
 * Times are the simulated driver's clock if the driver has one. At `end` the program prints one JSON object and exits
 * without waiting for what it launched.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#include "load.h"

#define MAX_STREAMS 64
#define MAX_ROUNDS 2000000
#define MAX_WOKEN 4096
#define MAX_CARDS 16

/*
 * The kernels count the time in which they run: a step of more than 20 us is another context's turn on the card. A
 * recorded program has one for each octave of durations, as real programs have kernels of their own for each purpose.
 */
#define KERNEL(name) \
	".visible .entry " name "_ns(.param .u64 ns)\n{\n\t.reg .pred %p;\n\t.reg .u64 %a<5>;\n" \
	"\tld.param.u64 %a0, [ns];\n\tmov.u64 %a1, %globaltimer;\n\tmov.u64 %a4, 0;\n" \
	"again:\n\tmov.u64 %a2, %globaltimer;\n\tsub.u64 %a3, %a2, %a1;\n\tmov.u64 %a1, %a2;\n" \
	"\tsetp.gt.u64 %p, %a3, 20000;\n\t@%p bra again;\n\tadd.u64 %a4, %a4, %a3;\n" \
	"\tsetp.lt.u64 %p, %a4, %a0;\n\t@%p bra again;\n\tret;\n}\n"
#define OCTAVES 16

static const char ptx[] = ".version 6.0\n.target sm_60\n.address_size 64\n" KERNEL("spin") KERNEL("o0") KERNEL(
	"o1") KERNEL("o2") KERNEL("o3") KERNEL("o4") KERNEL("o5") KERNEL("o6") KERNEL("o7") KERNEL("o8") KERNEL("o9")
	KERNEL("o10") KERNEL("o11") KERNEL("o12") KERNEL("o13") KERNEL("o14") KERNEL(
		"o15") ".visible .entry meet_ns(.param .u64 ns, .param .u64 key, .param .u64 parties) { ret; }\n";

struct lane {
	unsigned card;
	CUstream stream;
	CUgraphExec graph;
	CUdeviceptr memory;
	uint64_t graph_ns;
	CUevent event;
	CUstream beside; /* of the copies that are apart */
	uint32_t *flag, done, asked; /* flag: in memory that the card writes */
};

static void wait_for_stream(struct lane *lane);

static struct {
	char shape;
	double a, b, c;
	uint64_t launches, gap, rounds, streams, threads, graph, copy, memset, grid, block, card, seed;
	uint64_t trace, probe, gate, burn, on, off;
	uint64_t meet, parties, cards;
	uint64_t limit, group, apart;
	void (*wait)(struct lane *);
	const struct load_peer *peer;
} load = {
	.shape = 'f',
	.a = 1e6,
	.launches = 1,
	.streams = 1,
	.threads = 1,
	.cards = 1,
	.grid = 4096,
	.block = 1024,
	.wait = wait_for_stream,
};

struct load_times load_times;

static void *driver;
static CUcontext contexts[MAX_CARDS];
static void *kernels[MAX_CARDS], *octaves[OCTAVES];
static CUresult (*launch_kernel)(LAUNCH_ARGUMENTS);
static CUresult (*synchronize)(CUstream);

static uint64_t launched, rounds_done, asked_ns;
static uint32_t *durations_us;
static uint64_t woken[MAX_WOKEN], woken_count; /* relative to the origin */
static volatile bool is_over;

/* ---- time ---- */

uint64_t load_wall_now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

static void wall_sleep_until(uint64_t time)
{
	struct timespec until = {.tv_sec = (time_t)(time / 1000000000u), .tv_nsec = (long)(time % 1000000000u)};

	while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL) == EINTR)
		;
}

static void nothing(void)
{
}

static uint32_t no_number(void)
{
	return 0;
}

static void ignore_number(uint32_t number)
{
	(void)number;
}

static const struct vgpu_sim_clock wall_clock = {
	.now = load_wall_now,
	.sleep_until = wall_sleep_until,
	.block = nothing,
	.unblock = nothing,
	.thread_announce = no_number,
	.thread_adopt = ignore_number,
	.thread_withdraw = ignore_number,
};

const struct vgpu_sim_clock *load_clock = &wall_clock;

/* ---- threads ---- */

struct birth {
	void *(*run)(void *);
	void *argument;
	uint32_t number;
};

static void *born(void *argument)
{
	struct birth birth = *(struct birth *)argument;

	free(argument);
	load_clock->thread_adopt(birth.number);
	return birth.run(birth.argument);
}

void load_thread(void *(*run)(void *), void *argument)
{
	struct birth *birth = malloc(sizeof *birth);
	pthread_t id;

	*birth = (struct birth){run, argument, load_clock->thread_announce()};
	LOAD_CHECK(pthread_create(&id, NULL, born, birth));
	pthread_detach(id);
}

/* ---- the driver ---- */

void load_fail(const char *what, long code)
{
	while (is_over) /* a real driver refuses calls while the program exits */
		pause();
	fprintf(stderr, "cores_load: %s: %ld\n", what, code);
	_exit(1);
}

void *load_symbol(const char *name)
{
	void *found = dlsym(driver, name);

	if (!found)
		load_fail(name, 0);
	return found;
}

#define CALL(name, ...) ((CUresult (*)())load_symbol(#name))(__VA_ARGS__)

static void open_card(unsigned index)
{
	CUmodule module;

	LOAD_CHECK(CALL(cuDevicePrimaryCtxRetain, &contexts[index], (int)(load.card + index)));
	LOAD_CHECK(CALL(cuCtxSetCurrent, contexts[index]));
	LOAD_CHECK(CALL(cuModuleLoadData, &module, ptx));
	LOAD_CHECK(CALL(cuModuleGetFunction, &kernels[index], module, load.meet ? "meet_ns" : "spin_ns"));
	for (unsigned i = 0; !index && i < OCTAVES; i++) {
		char name[16];
		snprintf(name, sizeof name, "o%u_ns", i);
		LOAD_CHECK(CALL(cuModuleGetFunction, &octaves[i], module, name));
	}
}

static void open_driver(void)
{
	driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
	if (!driver)
		load_fail(dlerror(), 0);
	const struct vgpu_sim_clock *found = dlsym(driver, VGPU_SIM_CLOCK_SYMBOL);
	if (found && found->version == VGPU_SIM_CLOCK_VERSION)
		load_clock = found;
	LOAD_CHECK(CALL(cuInit, 0));
	for (unsigned i = 0; i < load.cards; i++)
		open_card(i);
	launch_kernel = (CUresult (*)(LAUNCH_ARGUMENTS))load_symbol("cuLaunchKernel");
	synchronize = (CUresult (*)(CUstream))load_symbol("cuStreamSynchronize");
}

/* ---- work ---- */

static uint64_t random_next(uint64_t *state)
{
	uint64_t value = *state += 0x9e3779b97f4a7c15u;

	value = (value ^ value >> 30) * 0xbf58476d1ce4e5b9u;
	value = (value ^ value >> 27) * 0x94d049bb133111ebu;
	return value ^ value >> 31;
}

static double uniform(uint64_t *state)
{
	return (double)(random_next(state) >> 11) / 9007199254740992.0;
}

static uint64_t duration_of_next(uint64_t *state)
{
	double value = load.a;

	if (load.shape == 'b' && uniform(state) * 1000 < load.c)
		value = load.b;
	if (load.shape == 'l') {
		double radius = sqrt(-2 * log(1 - uniform(state)));
		double normal = radius * cos(6.283185307179586 * uniform(state));
		value = load.a * exp(normal * load.b / 1000);
		value = value > load.c ? load.c : value;
	}
	return value < 1000 ? 1000 : (uint64_t)value;
}

void load_note_woken(void)
{
	uint64_t number = __atomic_fetch_add(&woken_count, 1, __ATOMIC_RELAXED);

	if (number < MAX_WOKEN)
		woken[number] = load_clock->now() - load_times.origin;
}

static void launch_one(struct lane *lane, uint64_t ns, bool is_captured)
{
	void *arguments[] = {&ns, &load.meet, &load.parties};
	uint64_t began = load.trace ? load_clock->now() : 0;

	if (load.peer && !is_captured)
		load.peer->before_launch((unsigned)load.grid);
	LOAD_CHECK(launch_kernel(kernels[lane->card], (unsigned)load.grid, 1, 1, (unsigned)load.block, 1, 1, 0,
				 lane->stream, arguments, NULL));
	if (load.trace && load_clock->now() - began >= load.trace)
		load_note_woken();
}

void load_launch(CUstream stream, uint64_t ns)
{
	void *arguments[] = {&ns};
	unsigned octave = 0;

	while (octave + 1 < OCTAVES && ns >> (octave + 10))
		octave++;
	LOAD_CHECK(launch_kernel(octaves[octave], (unsigned)load.grid, 1, 1, (unsigned)load.block, 1, 1, 0, stream,
				 arguments, NULL));
}

static void make_graph(struct lane *lane, uint64_t *state)
{
	void *graph;

	LOAD_CHECK(CALL(cuStreamBeginCapture_v2, lane->stream, 0));
	for (uint64_t i = 0; i < load.graph; i++) {
		uint64_t ns = duration_of_next(state);
		lane->graph_ns += ns;
		launch_one(lane, ns, true);
	}
	LOAD_CHECK(CALL(cuStreamEndCapture, lane->stream, &graph));
	LOAD_CHECK(CALL(cuGraphInstantiateWithFlags, &lane->graph, graph, 0ull));
}

static void make_lane(struct lane *lane, uint64_t *state)
{
	LOAD_CHECK(CALL(cuCtxSetCurrent, contexts[lane->card]));
	LOAD_CHECK(CALL(cuStreamCreate, &lane->stream, 1));
	if (load.apart)
		LOAD_CHECK(CALL(cuStreamCreate, &lane->beside, 1));
	uint64_t bytes = load.copy > load.memset ? load.copy : load.memset;
	if (bytes)
		LOAD_CHECK(CALL(cuMemAlloc_v2, &lane->memory, (size_t)bytes));
	if (load.graph)
		make_graph(lane, state);
}

static void record(struct lane *lane, CUstream stream)
{
	if (!lane->event)
		LOAD_CHECK(CALL(cuEventCreate, &lane->event, 2)); /* without timing */
	LOAD_CHECK(CALL(cuEventRecord, lane->event, stream));
}

/* Lets a stream wait for what another one has to do. */
static void follow(CUstream waits, struct lane *lane, CUstream other)
{
	record(lane, other);
	LOAD_CHECK(CALL(cuStreamWaitEvent, waits, lane->event, 0));
}

static void launch_some(struct lane *lane, void *host, uint64_t *state)
{
	if (load.cards > 1)
		LOAD_CHECK(CALL(cuCtxSetCurrent, contexts[lane->card]));
	for (uint64_t i = 0; i < load.launches; i++) {
		uint64_t ns = lane->graph ? lane->graph_ns : duration_of_next(state);
		if (lane->graph)
			LOAD_CHECK(CALL(cuGraphLaunch, lane->graph, lane->stream));
		else
			launch_one(lane, ns, false);
		__atomic_add_fetch(&launched, 1, __ATOMIC_RELAXED);
		__atomic_add_fetch(&asked_ns, ns, __ATOMIC_RELAXED);
	}
	if (load.copy && load.apart)
		follow(lane->beside, lane, lane->stream);
	if (load.copy)
		LOAD_CHECK(CALL(cuMemcpyHtoDAsync_v2, lane->memory, host, (size_t)load.copy,
				load.apart ? lane->beside : lane->stream));
	if (load.copy && load.apart)
		follow(lane->stream, lane, lane->beside);
	if (load.memset)
		LOAD_CHECK(CALL(cuMemsetD8Async, lane->memory, (unsigned char)0, (size_t)load.memset, lane->stream));
}

/* ---- ways to learn that a round is done ---- */

#define POLL_EACH 2000 /* ns between two looks of a program that polls: a query takes some 1 us */

static void wait_for_stream(struct lane *lane)
{
	LOAD_CHECK(synchronize(lane->stream));
}

static void wait_for_context(struct lane *lane)
{
	(void)lane;
	LOAD_CHECK(CALL(cuCtxSynchronize, 0));
}

static void wait_for_event(struct lane *lane)
{
	record(lane, lane->stream);
	LOAD_CHECK(CALL(cuEventSynchronize, lane->event));
}

static void look_again(void)
{
	load_clock->sleep_until(load_clock->now() + POLL_EACH);
}

static void query_event(struct lane *lane)
{
	CUresult result;

	record(lane, lane->stream);
	while ((result = CALL(cuEventQuery, lane->event)) == CUDA_ERROR_NOT_READY)
		look_again();
	LOAD_CHECK(result);
}

static void query_stream(struct lane *lane)
{
	CUresult result;

	while ((result = CALL(cuStreamQuery, lane->stream)) == CUDA_ERROR_NOT_READY)
		look_again();
	LOAD_CHECK(result);
}

static void *wait_elsewhere(void *argument)
{
	struct lane *lane = argument;

	LOAD_CHECK(CALL(cuCtxSetCurrent, contexts[lane->card]));
	for (uint32_t done = 1;; done++) {
		while (__atomic_load_n(&lane->asked, __ATOMIC_ACQUIRE) < done)
			look_again();
		LOAD_CHECK(synchronize(lane->stream));
		__atomic_store_n(&lane->done, done, __ATOMIC_RELEASE);
	}
	return NULL;
}

static void wait_until_done(struct lane *lane, uint32_t *word)
{
	while (__atomic_load_n(word, __ATOMIC_ACQUIRE) < lane->asked)
		look_again();
}

static void wait_by_thread(struct lane *lane)
{
	if (!lane->asked)
		load_thread(wait_elsewhere, lane);
	__atomic_store_n(&lane->asked, lane->asked + 1, __ATOMIC_RELEASE);
	wait_until_done(lane, &lane->done);
}

static void note_done(void *lane)
{
	__atomic_fetch_add(&((struct lane *)lane)->done, 1, __ATOMIC_RELEASE);
}

static void wait_by_host_function(struct lane *lane)
{
	lane->asked++;
	LOAD_CHECK(CALL(cuLaunchHostFunc, lane->stream, note_done, lane));
	wait_until_done(lane, &lane->done);
}

static void wait_for_flag(struct lane *lane)
{
	CUdeviceptr address;

	if (!lane->flag)
		LOAD_CHECK(CALL(cuMemHostAlloc, &lane->flag, (size_t)4096, 2)); /* mapped */
	LOAD_CHECK(CALL(cuMemHostGetDevicePointer_v2, &address, lane->flag, 0));
	lane->asked++;
	LOAD_CHECK(CALL(cuStreamWriteValue32_v2, lane->stream, address, lane->asked, 0));
	wait_until_done(lane, lane->flag);
}

static void (*way_to_wait(const char *name))(struct lane *)
{
	static const struct {
		const char *name;
		void (*wait)(struct lane *);
	} ways[] = {
		{"1", wait_for_stream},        {"stream", wait_for_stream},
		{"context", wait_for_context}, {"event", wait_for_event},
		{"query", query_event},        {"stream_query", query_stream},
		{"thread", wait_by_thread},    {"host", wait_by_host_function},
		{"flag", wait_for_flag},       {"0", NULL},
	};

	for (size_t i = 0; i < sizeof ways / sizeof *ways; i++)
		if (strcmp(ways[i].name, name) == 0)
			return ways[i].wait;
	load_fail(name, 0);
	return NULL;
}

void load_note_round(uint64_t began)
{
	uint64_t number = __atomic_fetch_add(&rounds_done, 1, __ATOMIC_RELAXED);

	if (number < MAX_ROUNDS)
		durations_us[number] = (uint32_t)((load_clock->now() - began) / 1000);
}

static void do_round(struct lane *lanes, void *host, uint64_t *state)
{
	uint64_t began = load_clock->now();

	for (uint64_t i = 0; i < load.streams; i++)
		launch_some(&lanes[i], host, state);
	for (uint64_t i = 0; load.wait && i < load.streams; i++)
		load.wait(&lanes[i]);
	load_note_round(began);
}

static void serve(struct lane *lanes, void *host, uint64_t *state)
{
	struct load_request request;

	while (load_requests_next(&request)) {
		do_round(lanes, host, state);
		load_requests_done(&request);
	}
}

static void sleep_while_off(void)
{
	uint64_t cycle = load.on + load.off, passed = load_clock->now() - load_times.origin - load_times.begin;

	if (passed % cycle >= load.on)
		load_clock->sleep_until(load_times.origin + load_times.begin + passed / cycle * cycle + cycle);
}

static void work_in_rounds(struct lane *lanes, void *host, uint64_t *state)
{
	for (uint64_t round = 0; !load.rounds || round < load.rounds; round++) {
		if (load.on)
			sleep_while_off();
		do_round(lanes, host, state);
		if (load.gap)
			load_clock->sleep_until(load_clock->now() + load.gap);
	}
}

static void *work(void *argument)
{
	uint64_t state = load.seed * 1000003 + (uint64_t)(uintptr_t)argument;
	struct lane lanes[MAX_STREAMS] = {0};
	void *host = NULL;

	LOAD_CHECK(CALL(cuCtxSetCurrent, contexts[0]));
	if (load.copy)
		LOAD_CHECK(CALL(cuMemAllocHost_v2, &host, (size_t)load.copy));
	for (uint64_t i = 0; i < load.streams; i++) {
		lanes[i].card = (unsigned)(i % load.cards);
		make_lane(&lanes[i], &state);
	}
	load_clock->sleep_until(load_times.origin + load_times.begin);
	if (load_requests_are_open())
		serve(lanes, host, &state);
	else
		work_in_rounds(lanes, host, &state);
	load_clock->sleep_until(VGPU_SIM_NEVER);
	return NULL;
}

static void *replay(void *thread)
{
	LOAD_CHECK(CALL(cuCtxSetCurrent, contexts[0]));
	load_clock->sleep_until(load_times.origin + load_times.begin);
	load_replay((unsigned)(uintptr_t)thread);
	return NULL;
}

/* ---- options and report ---- */

static void read_kernel(const char *text)
{
	char shape[16] = "";

	if (sscanf(text, "%15[a-z]:%lf:%lf:%lf", shape, &load.a, &load.b, &load.c) < 2 || !strchr("flb", shape[0]))
		load_fail(text, 0);
	load.shape = shape[0];
}

static void read_number(const char *name, const char *value)
{
	static const struct {
		const char *name;
		uint64_t *value;
	} numbers[] = {
		{"launches", &load.launches},
		{"gap", &load.gap},
		{"rounds", &load.rounds},
		{"streams", &load.streams},
		{"threads", &load.threads},
		{"graph", &load.graph},
		{"copy", &load.copy},
		{"apart", &load.apart},
		{"memset", &load.memset},
		{"grid", &load.grid},
		{"block", &load.block},
		{"card", &load.card},
		{"seed", &load.seed},
		{"origin", &load_times.origin},
		{"begin", &load_times.begin},
		{"end", &load_times.end},
		{"warm", &load_times.warm},
		{"meet", &load.meet},
		{"parties", &load.parties},
		{"cards", &load.cards},
		{"trace", &load.trace},
		{"probe", &load.probe},
		{"gate", &load.gate},
		{"gate_from", &load_gate_from},
		{"burn", &load.burn},
		{"limit", &load.limit},
		{"on", &load.on},
		{"off", &load.off},
		{"group", &load.group},
		{"lie_from", &load_lie.from},
		{"lie_length", &load_lie.length},
		{"lie_count", &load_lie.count},
		{"lie_stride", &load_lie.stride},
		{"lie_each", &load_lie.each},
		{"lie_own", &load_lie.own},
	};

	for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
		if (strcmp(numbers[i].name, name) == 0) {
			*numbers[i].value = strtoull(value, NULL, 10);
			return;
		}
	load_fail(name, 0);
}

static void read_option(char *text)
{
	char *value = strchr(text, '=');

	if (!value)
		load_fail(text, 0);
	*value++ = 0;
	if (strcmp(text, "kernel") == 0)
		read_kernel(value);
	else if (strcmp(text, "arrivals") == 0)
		load_requests_open(value);
	else if (strcmp(text, "replay") == 0)
		load_replay_open(value);
	else if (strcmp(text, "wait") == 0)
		load.wait = way_to_wait(value);
	else if (strcmp(text, "peer") == 0)
		load.peer = strcmp(value, "none") == 0 ? NULL : load_peer_of(value);
	else
		read_number(text, value);
}

static int compare(const void *a, const void *b)
{
	uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

	return x < y ? -1 : x > y;
}

static void report(uint64_t cpu)
{
	uint64_t count = rounds_done < MAX_ROUNDS ? rounds_done : MAX_ROUNDS;

	qsort(durations_us, count, sizeof *durations_us, compare);
	printf("{\"woken\": [");
	for (uint64_t i = 0; i < woken_count && i < MAX_WOKEN; i++)
		printf("%s%lu", i ? ", " : "", (unsigned long)woken[i]);
	printf("], \"launched\": %lu, \"asked_ns\": %lu, \"rounds\": %lu, \"p50_us\": %u, \"p99_us\": %u, \"cpu_ms\": %.3f",
	       (unsigned long)launched, (unsigned long)asked_ns, (unsigned long)rounds_done,
	       count ? durations_us[count / 2] : 0, count ? durations_us[count * 99 / 100] : 0, (double)cpu / 1e6);
	if (load_requests_are_open())
		load_requests_report();
	printf("}\n");
	fflush(stdout);
}

static void start_thread(uint64_t number)
{
	if (load.probe)
		load_thread(load_probe, (void *)(uintptr_t)load.probe);
	else if (load.gate)
		load_thread(load_gate, (void *)(uintptr_t)load.gate);
	else if (load_replay_threads())
		load_thread(replay, (void *)(uintptr_t)number);
	else
		load_thread(work, (void *)(uintptr_t)number);
}

int main(int count, char **arguments)
{
	/* A thread in virtual time that waits for a process that has ended would wait for ever. */
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	for (int i = 1; i < count; i++)
		read_option(arguments[i]);
	setpgid(0, (pid_t)load.group);
	if (load.streams > MAX_STREAMS || load.cards > MAX_CARDS)
		load_fail("streams or cards", (long)load.streams);
	durations_us = calloc(MAX_ROUNDS, sizeof *durations_us);
	open_driver();
	if (!load_times.origin)
		load_times.origin = load_clock->now();
	if (load.peer)
		load.peer->start((unsigned)load.limit);
	load_lies();
	if (load_replay_threads()) {
		load_replay_prepare();
		load.threads = load_replay_threads();
	}
	for (uint64_t i = 0; i < load.threads; i++)
		start_thread(i);
	for (uint64_t i = 0; i < load.burn; i++)
		load_thread(load_burn, NULL);
	load_clock->sleep_until(load_times.origin + load_times.warm);
	uint64_t cpu_before = load_cpu_ns();
	load_clock->sleep_until(load_times.origin + load_times.end);
	report(load_cpu_ns() - cpu_before);
	is_over = true;
	return 0;
}
