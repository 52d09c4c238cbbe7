/*
 * The virtual clock: registers processes and threads, chooses the next thread to run, and advances the time
 * (state/virtual.h describes the rules). It also detects a running thread that was killed or sleeps outside the clock.
 * The rest of the simulator calls state/clock.c instead.
 */
#include "state/virtual.h"

#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "state/internal.h"
#include "state/realtime.h"

#define PATIENCE_NS 100000000 /* of real time, after which a waiting thread checks the running one */
#define SLEPT 10u /* checks that find the running thread asleep, after which another one runs */
#define QUOTA_NS 100000000 /* the period of `cpu.max` */
#define NONE SIM_MAX_THREADS

enum { FREE, CLAIMED, ANNOUNCED, BLOCKED, OUTSIDE, STOPPED };

static _Thread_local uint32_t own = NONE; /* this thread's entry */
static _Thread_local uint32_t own_check;  /* the order number of the registration that `own` belongs to */
static uint32_t process = SIM_MAX_PROCESSES;
static pthread_mutex_t registering = PTHREAD_MUTEX_INITIALIZER;
static pthread_key_t at_thread_end;

bool sim_virtual(void)
{
	return sim_timeline != NULL;
}

uint64_t sim_virtual_now(void)
{
	return __atomic_load_n(&sim_timeline->now, __ATOMIC_ACQUIRE);
}

static void wait_on(uint32_t *word, uint32_t seen, long patience_ns)
{
	struct timespec time = {.tv_nsec = patience_ns};

	syscall(SYS_futex, word, FUTEX_WAIT, seen, &time, NULL, 0);
}

static void wake_up(uint32_t *word)
{
	__atomic_add_fetch(word, 1, __ATOMIC_SEQ_CST);
	syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

static uint32_t running(void)
{
	return __atomic_load_n(&sim_timeline->running, __ATOMIC_SEQ_CST);
}

static bool replace_running(uint32_t old, uint32_t new)
{
	return __atomic_compare_exchange_n(&sim_timeline->running, &old, new, false, __ATOMIC_SEQ_CST,
					   __ATOMIC_SEQ_CST);
}

static uint64_t due_of(uint32_t thread)
{
	return __atomic_load_n(&sim_timeline->due[thread], __ATOMIC_SEQ_CST);
}

static void set_due(uint32_t thread, uint64_t due)
{
	__atomic_store_n(&sim_timeline->due[thread], due, __ATOMIC_SEQ_CST);
}

static uint32_t thread_high(void)
{
	uint32_t high = __atomic_load_n(&sim_timeline->thread_high, __ATOMIC_SEQ_CST);

	return high < SIM_MAX_THREADS ? high : SIM_MAX_THREADS;
}

/* The thread that is due first; NONE: no thread is due, or not all processes have registered yet. */
static uint32_t first_due(void)
{
	uint32_t first = NONE, high = thread_high();
	uint64_t due = SIM_NEVER;

	if (__atomic_load_n(&sim_timeline->process_count, __ATOMIC_SEQ_CST) < sim_state_header()->parties)
		return NONE;
	for (uint32_t i = 0; i < high; i++) {
		uint64_t time = due_of(i);
		if (time > due || time == SIM_NEVER ||
		    (time == due && first != NONE &&
		     sim_timeline->threads[i].order >= sim_timeline->threads[first].order))
			continue;
		first = i;
		due = time;
	}
	return first;
}

static void advance(uint64_t time)
{
	uint64_t now = __atomic_load_n(&sim_timeline->now, __ATOMIC_RELAXED);

	while (now < time &&
	       !__atomic_compare_exchange_n(&sim_timeline->now, &now, time, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))
		;
}

/* The time is set first: the thread may read `running` at any moment, and goes on when it finds its own number. */
static void let_run(uint32_t holder, uint32_t thread)
{
	uint64_t due = due_of(thread);

	if (due == SIM_NEVER) /* the thread has ended in between */
		return;
	advance(due);
	if (!replace_running(holder, thread + 1))
		return;
	__atomic_add_fetch(&sim_timeline->passes, 1, __ATOMIC_RELAXED);
	if (thread != own)
		wake_up(&sim_timeline->threads[thread].wake);
}

/* The running thread, `holder`, stops running, and the next one that is due runs. */
static void hand_over(uint32_t holder)
{
	uint32_t next = first_due();

	if (next == NONE) {
		/*
		 * A thread that enters publishes itself before it reads `running`; this function does it the other way round.
		 */
		if (!replace_running(holder, 0) || (next = first_due()) == NONE)
			return;
		holder = 0;
	}
	let_run(holder, next);
}

static bool process_lives(uint32_t number)
{
	struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = SIM_MAX_SLOTS + number, .l_len = 1};

	return fcntl(sim_state_slots_fd(), F_OFD_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
}

static void drop(uint32_t thread)
{
	set_due(thread, SIM_NEVER);
	sim_timeline->key[thread] = 0;
	__atomic_store_n(&sim_timeline->threads[thread].state, FREE, __ATOMIC_RELEASE);
}

static void bury(uint32_t number)
{
	for (uint32_t i = 0; i < thread_high(); i++)
		if (sim_timeline->threads[i].state != FREE && sim_timeline->threads[i].process == number)
			drop(i);
	sim_timeline->processes[number].pid = 0;
}

/* The thread's state, as the kernel reports it; 0: it holds the time, or is of another PID namespace. */
static char state_of(const struct sim_timeline_thread *thread)
{
	char path[64], text[512];
	char state = 0;

	if (!thread->tid || thread->process >= SIM_MAX_PROCESSES || process >= SIM_MAX_PROCESSES ||
	    sim_timeline->processes[thread->process].namespace != sim_timeline->processes[process].namespace)
		return 0;
	snprintf(path, sizeof path, "/proc/%d/stat", (int)thread->tid);
	FILE *file = fopen(path, "re");
	if (!file)
		return 'S';
	size_t length = fread(text, 1, sizeof text - 1, file);
	fclose(file);
	text[length] = 0;
	const char *end = strrchr(text, ')');
	if (end && end[1])
		state = end[2];
	return state;
}

struct look {
	uint64_t passes;
	unsigned slept;
};

/* It publishes itself when it goes on. */
static void pass_over_stopped(uint32_t holder)
{
	if (!replace_running(holder, own + 1))
		return;
	set_due(holder - 1, SIM_NEVER);
	sim_timeline->threads[holder - 1].state = STOPPED;
	hand_over(own + 1);
}

/*
 * A thread that has waited long checks the running one. It takes over from a sleeping thread only after it has seen it
 * asleep SLEPT times without another change of threads in between: on a busy machine a page of a file takes long, too.
 */
static void look_after(struct look *last)
{
	uint32_t holder = running();

	if (!holder || holder > SIM_MAX_THREADS) {
		hand_over(holder);
		return;
	}
	const struct sim_timeline_thread *thread = &sim_timeline->threads[holder - 1];
	uint64_t passes = __atomic_load_n(&sim_timeline->passes, __ATOMIC_ACQUIRE);
	uint32_t number = thread->process;
	if (number < SIM_MAX_PROCESSES && !process_lives(number)) {
		if (!replace_running(holder, own + 1))
			return;
		sim_timeline->stolen++;
		bury(number);
		hand_over(own + 1);
		return;
	}
	char state = state_of(thread);
	unsigned slept = state != 'S' ? 0 : last->passes == passes ? last->slept + 1 : 1;
	*last = (struct look){passes, slept};
	if (state == 'T')
		pass_over_stopped(holder);
	else if (slept >= SLEPT) {
		sim_timeline->stolen++;
		hand_over(holder);
	}
}

static void publish(uint32_t number)
{
	sim_timeline->threads[number].state = BLOCKED;
	set_due(number, sim_virtual_now());
}

static void wait_for_turn(void)
{
	struct look last = {0};

	for (;;) {
		uint32_t word = __atomic_load_n(&sim_timeline->threads[own].wake, __ATOMIC_SEQ_CST);
		uint64_t passes = __atomic_load_n(&sim_timeline->passes, __ATOMIC_ACQUIRE);
		if (sim_timeline->threads[own].state == STOPPED)
			publish(own);
		if (!running())
			hand_over(0);
		if (running() == own + 1)
			return;
		wait_on(&sim_timeline->threads[own].wake, word, PATIENCE_NS);
		while (process >= SIM_MAX_PROCESSES)
			pause(); /* the process is ending */
		if (running() != own + 1 && __atomic_load_n(&sim_timeline->passes, __ATOMIC_ACQUIRE) == passes)
			look_after(&last);
	}
}

/* ---- processes and threads that take part ---- */

static uint64_t started_at(void)
{
	char text[1024];
	unsigned long long start = 0;
	FILE *file = fopen("/proc/self/stat", "re");

	if (!file)
		return 0;
	size_t length = fread(text, 1, sizeof text - 1, file);
	fclose(file);
	text[length] = 0;
	char *at = strrchr(text, ')');
	if (at)
		sscanf(at + 2, "%*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d %llu",
		       &start);
	return start;
}

static bool lock_process(uint32_t number)
{
	struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = SIM_MAX_SLOTS + number, .l_len = 1};

	return fcntl(sim_state_slots_fd(), F_SETLK, &lock) == 0;
}

/*
 * libcuda and libnvidia-ml share no variables, but a process has one entry. True: this library was the first of the
 * two.
 */
static bool find_process(void)
{
	struct stat status = {0};
	uint64_t start = started_at();
	const char *rank = getenv("VGPU_SIM_RANK");

	stat("/proc/self/ns/pid", &status);
	for (uint32_t i = 0; i < SIM_MAX_PROCESSES; i++) {
		const struct sim_timeline_process *known = &sim_timeline->processes[i];
		if (known->pid == getpid() && known->namespace == status.st_ino && known->start == start &&
		    process_lives(i)) {
			process = i;
			return false;
		}
	}
	for (uint32_t i = 0; i < SIM_MAX_PROCESSES; i++) {
		if (process_lives(i) || !lock_process(i))
			continue;
		bury(i);
		process = i;
		sim_timeline->processes[i] = (struct sim_timeline_process){
			.namespace = status.st_ino,
			.start = start,
			.pid = getpid(),
			.rank = rank ? (uint32_t)atol(rank) : i,
		};
		return true;
	}
	fprintf(stderr, "vgpu-sim: more than %u processes live in virtual time\n", SIM_MAX_PROCESSES);
	abort();
}

static void end_thread(void *unused)
{
	(void)unused;
	if (own == NONE || sim_timeline->threads[own].tid != (int32_t)gettid() ||
	    sim_timeline->threads[own].process != process || sim_timeline->threads[own].state == FREE)
		return;
	uint32_t gone = own;
	own = NONE;
	drop(gone);
	if (running() == gone + 1)
		hand_over(gone + 1);
}

/* A forked child inherits its parent's identity, and must not use it. */
static void forget_parent(void)
{
	own = NONE;
	process = SIM_MAX_PROCESSES;
	pthread_mutex_init(&registering, NULL);
}

static void prepare(void)
{
	pthread_key_create(&at_thread_end, end_thread);
	pthread_atfork(NULL, NULL, forget_parent);
}

/* A process that ends removes itself: the others need not detect it. */
__attribute__((destructor)) static void end_process(void)
{
	uint32_t number = process;

	if (number >= SIM_MAX_PROCESSES || !sim_timeline || sim_state_forked())
		return;
	uint32_t holder = running();
	process = SIM_MAX_PROCESSES;
	bool ours = holder && holder <= SIM_MAX_THREADS && sim_timeline->threads[holder - 1].process == number;
	bury(number);
	own = NONE;
	if (ours)
		hand_over(holder);
}

/* Claims a free entry for this process. Its place in the order is that of its registration. */
static uint32_t claim_thread(void)
{
	for (uint32_t i = 0; i < SIM_MAX_THREADS; i++) {
		uint32_t expected = FREE;
		struct sim_timeline_thread *thread = &sim_timeline->threads[i];
		if (thread->state != FREE || !__atomic_compare_exchange_n(&thread->state, &expected, CLAIMED, false,
									  __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))
			continue;
		thread->process = process;
		thread->tid = 0;
		uint32_t *last = &sim_timeline->processes[process].sequence;
		uint64_t sequence = __atomic_add_fetch(last, 1, __ATOMIC_ACQ_REL);
		thread->order = (uint64_t)sim_timeline->processes[process].rank << 32 | sequence;
		sim_timeline->key[i] = 0;
		set_due(i, SIM_NEVER);
		uint32_t high = sim_timeline->thread_high;
		while (high <= i && !__atomic_compare_exchange_n(&sim_timeline->thread_high, &high, i + 1, false,
								 __ATOMIC_SEQ_CST, __ATOMIC_RELAXED))
			;
		return i;
	}
	fprintf(stderr, "vgpu-sim: more than %u threads live in virtual time\n", SIM_MAX_THREADS);
	abort();
}

/* The other library may have registered this thread already. */
static uint32_t find_thread(void)
{
	for (uint32_t i = 0; i < thread_high(); i++)
		if (sim_timeline->threads[i].state >= BLOCKED && sim_timeline->threads[i].process == process &&
		    sim_timeline->threads[i].tid == (int32_t)gettid())
			return i;
	return NONE;
}

static void take_entry(uint32_t number)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	own = number;
	own_check = (uint32_t)sim_timeline->threads[number].order;
	pthread_once(&once, prepare);
	pthread_setspecific(at_thread_end, &own);
}

static void register_thread(void)
{
	pthread_mutex_lock(&registering);
	bool is_new = process >= SIM_MAX_PROCESSES && find_process();
	uint32_t number = find_thread();
	bool known = number != NONE;
	if (!known)
		number = claim_thread();
	sim_timeline->threads[number].tid = (int32_t)gettid();
	if (!known)
		publish(number);
	take_entry(number);
	/* Only now: the process that completes the number of parties must find all threads. */
	if (is_new)
		__atomic_add_fetch(&sim_timeline->process_count, 1, __ATOMIC_SEQ_CST);
	pthread_mutex_unlock(&registering);
}

static bool is_registered(void)
{
	return own != NONE && (uint32_t)sim_timeline->threads[own].order == own_check &&
	       sim_timeline->threads[own].process == process && sim_timeline->threads[own].state != FREE;
}

bool sim_virtual_runs(void)
{
	return is_registered() && running() == own + 1;
}

/* ---- when the running thread waits, and goes on ---- */

static void pass(uint64_t due, uint64_t key)
{
	sim_timeline->threads[own].state = BLOCKED;
	sim_timeline->key[own] = key;
	set_due(own, due);
	hand_over(own + 1);
	wait_for_turn();
	sim_timeline->key[own] = 0;
	set_due(own, SIM_NEVER);
}

/* The finalizer of splitmix64. */
static uint64_t mixed(uint64_t x)
{
	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
	x = (x ^ x >> 27) * 0x94d049bb133111ebu;
	return x ^ x >> 31;
}

/* An exponentially distributed number, by von Neumann's method: an odd number of uniform ones, each below the last. */
static uint64_t exponential(uint64_t mean, uint64_t seed)
{
	for (uint64_t whole = 0;; whole += mean) {
		uint64_t first = mixed(++seed) >> 32, last = first, next;
		bool is_odd = true;
		while ((next = mixed(++seed) >> 32) < last) {
			last = next;
			is_odd = !is_odd;
		}
		if (is_odd)
			return whole + (first * mean >> 32);
	}
}

/* The first time from `due` on at which the process may run: `cpu_percent`. Its rank says when its periods begin. */
static uint64_t within_quota(uint64_t due)
{
	uint32_t percent = sim_state_header()->cpu_percent;
	uint64_t at = (due + mixed(sim_timeline->processes[process].rank + 1u)) % QUOTA_NS;

	return percent && at >= percent * (QUOTA_NS / 100) ? due + QUOTA_NS - at : due;
}

/* A thread of a program that uses cards goes on when it gets a CPU. Its number and the time say how late it wakes. */
static void await_cpu(bool was_woken)
{
	uint64_t mean = sim_state_header()->late_ns, now = sim_virtual_now(), due = now;

	if (sim_realtime_stays() || sim_slots_own() < 0)
		return;
	if (was_woken && mean)
		due += exponential(mean, mixed(sim_timeline->threads[own].order ^ mixed(now)));
	due = within_quota(due);
	if (due > now)
		pass(due, 0);
}

void sim_virtual_enter(void)
{
	if (sim_virtual_runs())
		return;
	if (!is_registered())
		register_thread();
	if (running() != own + 1) {
		publish(own);
		wait_for_turn();
	}
	set_due(own, SIM_NEVER);
	sim_timeline->key[own] = 0;
	await_cpu(true);
}

void sim_virtual_pass(uint64_t due, uint64_t key)
{
	sim_virtual_enter();
	pass(due, key);
	await_cpu(true);
}

void sim_virtual_compute(uint64_t ns)
{
	pass(sim_virtual_now() + ns, 0);
	await_cpu(false);
}

void sim_virtual_wake(uint64_t key)
{
	sim_virtual_enter();
	uint64_t now = sim_virtual_now();

	for (uint32_t i = 0; i < thread_high(); i++) {
		if (sim_timeline->key[i] != key)
			continue;
		sim_timeline->key[i] = 0;
		if (due_of(i) > now)
			set_due(i, now);
	}
}

void sim_virtual_leave(void)
{
	sim_virtual_enter();
	sim_timeline->threads[own].state = OUTSIDE;
	hand_over(own + 1);
}

void sim_virtual_hold(bool held)
{
	sim_virtual_enter();
	sim_timeline->threads[own].tid = held ? 0 : (int32_t)gettid();
}

/*
 * Bit 63: a private address. Bit 62: an offset in the state's file. Bit 61: an offset in a page, which all mappings
 * share.
 */
uint64_t sim_virtual_private_key(const void *address)
{
	return 1ull << 63 | (uint64_t)process << 52 | ((uintptr_t)address & ((1ull << 52) - 1));
}

uint64_t sim_virtual_shared_key(const void *address)
{
	uintptr_t at = (uintptr_t)address, base = (uintptr_t)sim_timeline - offsetof(struct sim_file, timeline);

	if (at >= base && at < base + sizeof(struct sim_file))
		return 1ull << 62 | (at - base);
	return 1ull << 61 | (at & 4095);
}

uint32_t sim_virtual_announce(void)
{
	sim_virtual_enter();
	uint32_t number = claim_thread();
	sim_timeline->threads[number].state = ANNOUNCED;
	set_due(number, sim_virtual_now());
	return number;
}

void sim_virtual_adopt(uint32_t number)
{
	if (number >= SIM_MAX_THREADS || sim_timeline->threads[number].state != ANNOUNCED ||
	    sim_timeline->threads[number].process != process)
		return;
	sim_timeline->threads[number].tid = (int32_t)gettid();
	sim_timeline->threads[number].state = BLOCKED;
	take_entry(number);
	wait_for_turn();
	set_due(own, SIM_NEVER);
	await_cpu(true);
}

void sim_virtual_withdraw(uint32_t number)
{
	if (number < SIM_MAX_THREADS && sim_timeline->threads[number].state == ANNOUNCED)
		drop(number);
}
