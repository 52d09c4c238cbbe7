/*
 * Implements memory/context_overhead.h. One lock serializes the looks at NVML's lists and the bookings that follow from
 * them.
 */
#include "memory/context_overhead.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/bounds.h"
#include "base/log.h"
#include "memory/calls.h"
#include "memory/context_lock.h"
#include "memory/nvml_lists.h"
#include "memory/other_processes.h"
#include "memory/unlisted.h"
#include "nvml_abi.h"
#include "shared/device_limits.h"
#include "shared/limits.h"
#include "shared/usage.h"
#include "vgpu_usage.h"

enum {
	LAST_LOOKS = 4,  /* such looks after a context's end, since nobody may look again for long */
	LOOKS = 3,       /* tries to read a figure while other threads allocate */
	QUIET_LOOKS = 20, /* a millisecond apart */
	PERIOD = 5,      /* seconds between unprompted looks at NVML's figure */
	DRIFT = CONTEXT_OVERHEAD_DRIFT,
	DRIFT_MARKED = 256 << 20, /* the same where a mark stands for them: a part of VGPU_USAGE_UNACCOUNTED_MOST */
	CODE = 8 << 20, /* bytes that count as loaded by one call */
	ALLOWED = 16 << 20, /* bytes beyond the limit, or a quarter of a percent of it, up to which code is loaded */
	PATIENCE =
		10000, /* milliseconds to wait for contexts that other processes make: a card's first one takes seconds */
	PATIENCE_FOR_OWN = 2000, /* the same for further ones that this process makes */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t marks_lock =
	PTHREAD_MUTEX_INITIALIZER; /* of this process's marks in the usage region; held briefly */
static _Atomic uint64_t booked[VGPU_LIMITS_MAX_CARDS]; /* written under the lock */
static _Atomic uint64_t expected[VGPU_LIMITS_MAX_CARDS]; /* booked for contexts that are being made */
static unsigned int
	kept[VGPU_LIMITS_MAX_CARDS]; /* threads that make a context for which `booked` stands; under the lock */
static atomic_uint
	creating[VGPU_LIMITS_MAX_CARDS]; /* threads that make one whose size is not booked; written under marks_lock */
static unsigned int marks[VGPU_LIMITS_MAX_CARDS]; /* counts the calls of mark_unaccounted; under marks_lock */
static _Atomic uint32_t unaccounted; /* a bit per card's place, as this process's in the usage region */
static _Atomic uint32_t inexact; /* a bit per card's place: calls were under way at the last look */
static _Atomic uint32_t by_least; /* a bit per card's place: only the least possible overhead is booked */
static _Atomic uint32_t are_free; /* a bit per card's place: further contexts of this process take nothing */
static _Atomic time_t next_look;
static _Atomic uint64_t drifted[VGPU_LIMITS_MAX_CARDS]; /* see context_overhead_drifted; since the last look */
_Atomic int64_t context_overhead_padding[VGPU_LIMITS_MAX_CARDS];

static void context_overhead_after_fork(void)
{
	pthread_mutex_init(&lock, NULL);
	pthread_mutex_init(&marks_lock, NULL);
	nvml_lists_reset();
	for (unsigned int card = 0; card < VGPU_LIMITS_MAX_CARDS; card++)
		booked[card] = expected[card] = creating[card] = kept[card] = drifted[card] =
			context_overhead_padding[card] = 0;
	atomic_store(&unaccounted, 0);
	atomic_store(&by_least, 0);
	atomic_store(&inexact, 0);
}

static uint64_t measure_all(int card, const uint8_t uuid[16]);

static bool (*_Atomic refresh_unlisted)(void);

void context_overhead_set_refresh(bool (*refresh)(void))
{
	atomic_store(&refresh_unlisted, refresh);
}

static bool refresh(void)
{
	bool (*known)(void) = atomic_load(&refresh_unlisted);

	return !known || known();
}

/* For every process: one that has no context on a limited card may allocate there, too. */
__attribute__((constructor)) static void context_overhead_set_up(void)
{
	pthread_atfork(NULL, NULL, context_overhead_after_fork);
	usage_set_lookup(measure_all);
}

/* What this process has allocated of what NVML lists with it. */
static uint64_t other_charges(int card)
{
	uint64_t own = usage_own(card), others = booked[card] + expected[card] + unlisted_bytes(card);

	return own > others ? own - others : 0;
}

static bool has_context_on(const uint8_t uuid[16])
{
	struct device_limits limited;
	CUdevice device;

	return device_limits_current_device(&device) && device_limits_of(device, &limited) &&
	       !memcmp(limited.uuid, uuid, sizeof(limited.uuid));
}

/*
 * With the host's pids this process cannot find its own entry in the list. It is one of them, so its overhead is no
 * less than the least that any of them holds beyond `charges`. An earlier result stays valid: only
 * context_overhead_shrank reduces it.
 */
static uint64_t least_overhead(int card, const struct nvml_list *figures, uint64_t charges)
{
	uint64_t bytes = UINT64_MAX;

	for (unsigned int i = 0; i < figures->count; i++) {
		uint64_t used = figures->list[i].used;
		uint64_t beyond = used != (uint64_t)NVML_VALUE_NOT_AVAILABLE && used > charges ? used - charges : 0;
		bytes = beyond < bytes ? beyond : bytes;
	}
	bytes -= bytes % VGPU_USAGE_OVERHEAD_UNIT; /* as it is shown: the host's figure adds the rest */
	return figures->count && bytes > booked[card] ? bytes : booked[card];
}

/* What this process holds beyond its other charges. */
struct measure {
	uint64_t overhead;
	bool is_exact; /* false: calls were under way all the time. The overhead may be larger. */
};

/*
 * Calls that allocate or free are halted meanwhile. A call that cannot be halted has booked what the card does not hold
 * yet or holds no longer. The next try may find none.
 */
static bool ask_halted(int card, const uint8_t uuid[16], struct nvml_list *figures, uint64_t *charges, bool *is_quiet)
{
	calls_halt();
	bool is_known = refresh();
	uint64_t before = other_charges(card);
	bool known = other_processes_ask(uuid, figures);
	is_known &= refresh(); /* a stream may have taken or freed some meanwhile */
	*charges = other_charges(card);
	*is_quiet = calls_go_on() && is_known && *charges == before;
	*charges = before > *charges ? before : *charges;
	return known;
}

/* A process that NVML does not list holds nothing. False: the overhead is not known. */
static bool measure(int card, const uint8_t uuid[16], struct nvml_list *figures, struct measure *found)
{
	*found = (struct measure){0, false};
	for (int i = 0; i < LOOKS && !found->is_exact; i++) {
		uint64_t charges, used;
		bool known = ask_halted(card, uuid, figures, &charges, &found->is_exact);
		if (!known && figures->are_the_hosts && has_context_on(uuid) && found->is_exact) {
			found->overhead = least_overhead(card, figures, charges);
			atomic_fetch_or(&by_least, (uint32_t)1 << card);
			figures->count = 0; /* the caller must not look up other processes in this list */
			return true;
		}
		if (!known || (!nvml_figures_of(figures->list, figures->count, (unsigned int)getpid(), &used) &&
			       (used || !booked[card])))
			return false;
		uint64_t overhead = used > charges ? used - charges : 0;
		found->is_exact |= !used; /* whatever is under way: the card holds nothing for this process */
		if (found->is_exact || overhead > found->overhead)
			found->overhead = overhead;
	}
	return true;
}

static unsigned int count_marks(int card)
{
	pthread_mutex_lock(&marks_lock);
	unsigned int count = marks[card];
	pthread_mutex_unlock(&marks_lock);
	return count;
}

/* `seen`: the count before the figures were read. What another thread has marked since is not in them. */
static void clear_unaccounted(int card, unsigned int seen)
{
	pthread_mutex_lock(&marks_lock);
	if (marks[card] == seen) {
		atomic_fetch_and(&unaccounted, ~((uint32_t)1 << card));
		usage_set_unaccounted(card, false);
	}
	pthread_mutex_unlock(&marks_lock);
}

static void mark_unaccounted(int card)
{
	if (nvml_lists_are_useless())
		return;
	pthread_mutex_lock(&marks_lock);
	marks[card]++;
	usage_set_unaccounted(card, true);
	atomic_fetch_or(&unaccounted, (uint32_t)1 << card);
	pthread_mutex_unlock(&marks_lock);
}

/* The others have to look as long as calls under way may hide some of the overhead. */
static void mark_inexact(int card)
{
	if (!(atomic_load(&unaccounted) >> card & 1))
		mark_unaccounted(card);
}

/*
 * Shows the other processes how much of this one's charges is overhead. While the size of a context is unknown, all that
 * is left is expected: that is no overhead. Called with the lock held.
 */
static void show_overhead(int card)
{
	uint64_t known = usage_context_size(card) ? expected[card] : 0;

	usage_set_overhead(card, booked[card] + known, known && booked[card]);
}

/* Gives back what was booked for a context that is not being made any more. Called with the lock held. */
static void give_back_expected(int card, uint64_t size)
{
	if (!size)
		return;
	usage_release(card, size);
	atomic_fetch_sub(&expected[card], size);
	show_overhead(card);
}

/* What a booking becomes: `expected_size` bytes of it were booked for the context that this thread has made. */
struct follow_up {
	const struct usage_limit *limit; /* NULL: books even if there is no room */
	uint64_t expected_size;
	bool is_kept; /* `booked` stood for it */
	uint64_t refused; /* the overhead for which there was no room */
};

static bool book(int card, const uint8_t uuid[16], const struct nvml_list *figures, uint64_t size,
		 const struct usage_limit *limit)
{
	if (!limit)
		return usage_force(card, size), true;
	return usage_reserve_overhead(card, size, *limit,
				      other_processes_unaccounted(card, uuid, figures, false).bytes);
}

/*
 * What is to be booked by what was found, beside what another thread has booked for a context that it makes. While it
 * makes it, nobody knows how much of the overhead is the new context's, and what stands for it is not lowered. What is
 * not exact raises the booking, but does not lower it. A context that was made takes no less than what is known.
 */
static uint64_t overhead_target(int card, struct measure found, const struct follow_up *up)
{
	uint64_t have = booked[card], others = expected[card] - up->expected_size;

	if ((others || kept[card]) && found.overhead <= have + others)
		return found.is_exact && found.overhead < have && !kept[card] ? found.overhead : have;
	uint64_t target = found.overhead - others;
	if (found.is_exact)
		return target;
	uint64_t known = up->limit ? usage_context_size(card) : 0;
	have = known > have ? known : have;
	return target > have ? target : have;
}

/* Whether a thread makes a context, so that nobody can tell whether all is booked. Called with the lock held. */
static bool is_creating(int card)
{
	return atomic_load(&creating[card]) || atomic_load(&expected[card]) || kept[card];
}

/* Called with the lock held. False: there is no room for the overhead. */
static bool follow(int card, const uint8_t uuid[16], struct follow_up *up)
{
	const uint64_t have = booked[card] + up->expected_size;
	const unsigned int seen = count_marks(card);
	const uint64_t drift = atomic_load(&drifted[card]);
	struct nvml_list figures;
	struct measure found;
	bool fits = true;

	kept[card] -= up->is_kept;
	figures.are_the_hosts = false;
	if (!nvml_lists_are_ready() || !measure(card, uuid, &figures, &found)) {
		give_back_expected(card, up->expected_size);
		if (!figures.are_the_hosts) /* with the host's pids, a later try with a current context may succeed */
			clear_unaccounted(card, seen);
		return true;
	}
	if (!figures.are_the_hosts && found.is_exact)
		usage_saw_overhead(card, found.overhead);
	const uint64_t overhead = overhead_target(card, found, up);
	const uint32_t bit = (uint32_t)1 << card;
	if (found.is_exact && up->expected_size && booked[card] && overhead < booked[card] + up->expected_size / 2)
		atomic_fetch_or(&are_free, bit);
	if (found.is_exact) {
		atomic_fetch_sub(&drifted[card], drift);
		atomic_store(&context_overhead_padding[card], 0);
	}
	(void)(found.is_exact ? atomic_fetch_and(&inexact, ~bit) : atomic_fetch_or(&inexact, bit));
	if (overhead > have) {
		usage_set_overhead(card, overhead + expected[card] - up->expected_size, false);
		fits = book(card, uuid, &figures, overhead - have, up->limit);
	} else if (overhead < have) {
		usage_release(card, have - overhead);
	}
	if (fits) {
		atomic_store(&booked[card], overhead);
		atomic_fetch_sub(&expected[card], up->expected_size);
	} else {
		give_back_expected(card, up->expected_size);
		up->refused = overhead;
	}
	if (overhead || booked[card])
		show_overhead(card);
	if (!found.is_exact)
		mark_inexact(card);
	else if (context_lock_is_own() || !is_creating(card))
		clear_unaccounted(card, seen);
	return fits;
}

/* Whether the bytes make the drift pass a multiple of `step`. */
static bool passes(uint64_t before, uint64_t bytes, uint64_t step)
{
	return (before + bytes) / step != before / step;
}

static void set_next_look(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
	atomic_store_explicit(&next_look, now.tv_sec + PERIOD, memory_order_relaxed);
}

/*
 * The card's place in the usage region. USAGE_NO_CARD: nothing is limited, or allocations are refused with a message.
 */
static int place_of(CUdevice device, struct device_limits *limited)
{
	if (limits_state() != LIMITS_PRESENT || !device_limits_of(device, limited))
		return USAGE_NO_CARD;
	return usage_card(limited->uuid);
}

static void pause_for_others(void)
{
	const struct timespec pause = {.tv_nsec = 1000000};

	nanosleep(&pause, NULL);
}

static bool follow_up_locked(int card, const uint8_t uuid[16], struct follow_up *up)
{
	pthread_mutex_lock(&lock);
	bool fits = follow(card, uuid, up);
	set_next_look();
	pthread_mutex_unlock(&lock);
	return fits;
}

/* Waits for contexts that other threads make, whose size is booked nowhere yet. */
static void follow_locked(int card, const uint8_t uuid[16])
{
	struct follow_up up = {.limit = NULL};
	unsigned int depth = calls_step_out();

	for (int waited = 0; !context_lock_is_own() && atomic_load(&creating[card]) && waited < PATIENCE; waited++)
		pause_for_others();
	(void)follow_up_locked(card, uuid, &up);
	calls_step_in(depth);
}

static struct other_processes look_at_others(int card, const uint8_t uuid[16], bool is_quiet)
{
	struct other_processes others;
	struct nvml_list figures;

	pthread_mutex_lock(&lock);
	bool is_asked = usage_unaccounted_count(card) && nvml_lists_are_ready() && other_processes_ask(uuid, &figures);
	if (!is_asked)
		figures.count = 0;
	others = other_processes_unaccounted(card, uuid, &figures, is_quiet);
	pthread_mutex_unlock(&lock);
	if (!is_asked)
		others.creating = 0;
	return others;
}

static bool is_inexact(int card)
{
	return atomic_load(&inexact) >> card & 1;
}

/* What this process may have beyond its booking, since calls under way hid it. */
static uint64_t unaccounted_of_own(int card)
{
	uint64_t have = booked[card] + expected[card], size = usage_context_size(card);

	if (!is_inexact(card))
		return 0;
	if (!size)
		return have ? 0 : VGPU_USAGE_UNACCOUNTED_MOST;
	return size > have ? size - have : 0;
}

/* Whether no other process makes a call, as far as their figures tell: a call that allocates or frees changes them. */
static bool is_quiet(int card, const uint8_t uuid[16], uint64_t doubt)
{
	for (int look = 0; look < QUIET_LOOKS; look++) {
		pause_for_others();
		if (look_at_others(card, uuid, false).doubt != doubt)
			return false;
	}
	return true;
}

/*
 * Called by usage_reserve. Books this process's overhead and returns the unaccounted overhead of the other processes.
 * Waits for contexts that they make now. One that takes too long counts as what is known of contexts, or as the most.
 */
static uint64_t measure_all(int card, const uint8_t uuid[16])
{
	unsigned int depth = calls_step_out();

	if (atomic_load(&unaccounted) >> card & 1)
		follow_locked(card, uuid);
	struct other_processes others = look_at_others(card, uuid, false);
	for (int waited = 0; others.creating && waited < PATIENCE; waited++) {
		pause_for_others();
		others = look_at_others(card, uuid, false);
	}
	if (others.doubt && is_quiet(card, uuid, others.doubt)) {
		others = look_at_others(card, uuid, true);
		usage_saw_overhead(card, others.least); /* a context takes no more, so that nobody else doubts it */
	}
	calls_step_in(depth);
	uint64_t size = others.creating ? usage_context_size(card) : 0;
	return others.bytes + others.creating * (size ? size : VGPU_USAGE_UNACCOUNTED_MOST) + unaccounted_of_own(card);
}

/* ---- making contexts ---- */

static void begin_creating(struct context_booking *booking)
{
	booking->creating = true;
	pthread_mutex_lock(&marks_lock);
	if (!creating[booking->card]++)
		usage_set_creating(booking->card, true);
	pthread_mutex_unlock(&marks_lock);
}

static void end_creating(const struct context_booking *booking)
{
	if (!booking->creating)
		return;
	pthread_mutex_lock(&marks_lock);
	if (!--creating[booking->card])
		usage_set_creating(booking->card, false);
	pthread_mutex_unlock(&marks_lock);
}

static void give_up_context(const struct context_booking *booking)
{
	pthread_mutex_lock(&lock);
	give_back_expected(booking->card, booking->size);
	kept[booking->card] -= booking->is_kept;
	pthread_mutex_unlock(&lock);
}

static bool refuse_context(CUdevice device, int card, uint64_t size, uint64_t limit)
{
	usage_refused(card);
	log_line(LOG_INFO,
		 "a context on device %d was refused: the driver takes %llu bytes for this process, %s %llu bytes",
		 device, (unsigned long long)size,
		 size > limit ? "more than the container's whole share of"
			      : "and there is no room left in the container's share of",
		 (unsigned long long)limit);
	return false;
}

/*
 * What a context takes, as this container's processes have found out, or as another one shows now: calls under way may
 * hide some of that, so it is not kept. 0: unknown.
 */
static uint64_t known_size(int card, const uint8_t uuid[16])
{
	uint64_t size = usage_context_size(card);

	return size ? size : look_at_others(card, uuid, false).least;
}

/*
 * Books the size of a context, or all that is left while no size is known. 0: there was no room, or another process
 * found out the size meanwhile, so that what was left may have been less than a context. It is expected first: what is
 * booked and not expected is a charge beside the overhead for a thread that looks.
 */
static uint64_t reserve_context(int card, uint64_t known, struct usage_limit limit)
{
	uint64_t left = usage_left(card, limit);
	uint64_t size = known ? known : left < VGPU_USAGE_UNACCOUNTED_MOST ? left : VGPU_USAGE_UNACCOUNTED_MOST;

	if (!size)
		return 0;
	atomic_fetch_add(&expected[card], size);
	bool is_booked = usage_reserve(card, size, limit);
	bool is_valid = is_booked && (known || !usage_context_size(card));
	pthread_mutex_lock(&lock);
	if (is_valid)
		show_overhead(card);
	else if (is_booked)
		give_back_expected(card, size);
	else
		atomic_fetch_sub(&expected[card], size);
	pthread_mutex_unlock(&lock);
	return is_valid ? size : 0;
}

/* While no size is known, one process alone makes the first context and the others learn the size from it. */
static bool book_context(CUdevice device, struct context_booking *booking, const struct device_limits *limited)
{
	const struct usage_limit limit = device_limits_memory(limited);

	for (int waited = 0; waited < PATIENCE; waited++) {
		uint64_t known = known_size(booking->card, limited->uuid);
		uint64_t size = reserve_context(booking->card, known, limit);
		if (size) {
			booking->size = size;
			if (!known)
				begin_creating(booking);
			return true;
		}
		if (known)
			return refuse_context(device, booking->card, known, limit.memory);
		pause_for_others();
	}
	return true;
}

/*
 * Whether this process has contexts or code on the card already: the first context is what takes memory. Nobody lowers
 * that booking before the context is made: a context may have ended just now.
 */
static bool keep_overhead(struct context_booking *booking, const uint8_t uuid[16])
{
	int card = booking->card;

	if (!atomic_load(&booked[card]) && atomic_load(&unaccounted) >> card & 1)
		follow_locked(card, uuid);
	pthread_mutex_lock(&lock);
	booking->is_kept =
		booked[card] && booked[card] >= usage_context_size(card) && atomic_load(&are_free) >> card & 1;
	kept[card] += booking->is_kept;
	pthread_mutex_unlock(&lock);
	return booking->is_kept;
}

bool context_overhead_begin(CUdevice device, struct context_booking *booking)
{
	struct device_limits limited;

	*booking = (struct context_booking){.card = place_of(device, &limited)};
	if (booking->card == USAGE_NO_CARD)
		return true;
	const struct usage_limit limit = device_limits_memory(&limited);
	if (!atomic_load(&unaccounted))
		set_next_look();
	else if (atomic_load(&unaccounted) >> booking->card & 1) /* a mark stands for one context only */
		follow_locked(booking->card, limited.uuid);
	if (usage_has_room(booking->card, limit)) {
		begin_creating(booking); /* before the mark: a thread that looks waits, and leaves the mark */
		mark_unaccounted(booking->card);
		if (usage_has_room(booking->card, limit))
			return true;
		end_creating(booking);
		booking->creating = false;
	}
	bool fits = keep_overhead(booking, limited.uuid) || nvml_lists_are_useless() ||
		    book_context(device, booking, &limited);
	if (fits)
		mark_unaccounted(booking->card);
	return fits;
}

bool context_overhead_end(CUdevice device, const struct context_booking *booking, bool made)
{
	struct device_limits limited;
	bool fits = true;

	if (booking->card == USAGE_NO_CARD || !device_limits_of(device, &limited))
		return true;
	const struct usage_limit limit = device_limits_memory(&limited);
	struct follow_up up = {.limit = &limit, .expected_size = booking->size, .is_kept = booking->is_kept};
	/* A further context is booked now: a mark beside a booking tells processes of other pid namespaces nothing. */
	if (!made)
		give_up_context(booking);
	else if (booking->size || booking->is_kept || atomic_load(&booked[booking->card]) ||
		 !usage_has_room(booking->card, limit))
		fits = follow_up_locked(booking->card, limited.uuid, &up);
	else /* another thread may have read the figures, and cleared the mark, before the context was in them */
		mark_unaccounted(booking->card);
	end_creating(booking);
	return fits || refuse_context(device, booking->card, up.refused, limit.memory);
}

void context_overhead_follow(CUdevice device)
{
	struct device_limits limited;
	int card = place_of(device, &limited);

	if (card != USAGE_NO_CARD)
		follow_locked(card, limited.uuid);
}

void context_overhead_changed(CUdevice device)
{
	struct device_limits limited;
	int card = place_of(device, &limited);

	if (card == USAGE_NO_CARD)
		return;
	mark_unaccounted(card);
	if (passes(atomic_fetch_add(&drifted[card], CODE), CODE, DRIFT_MARKED) ||
	    !usage_has_room(card, device_limits_memory(&limited)))
		follow_locked(card, limited.uuid);
}

void context_overhead_shrank(CUdevice device)
{
	struct device_limits limited;
	int card = place_of(device, &limited);

	if (card == USAGE_NO_CARD)
		return;
	pthread_mutex_lock(
		&lock); /* first: another thread may be about to book what it saw before the context was gone */
	/* With the least, the list does not show how much was freed, nor if any is left. */
	if (booked[card] && !kept[card] && atomic_load(&by_least) >> card & 1) {
		usage_release(card, booked[card]);
		atomic_store(&booked[card], 0);
		show_overhead(card);
		atomic_fetch_and(&by_least, ~((uint32_t)1 << card));
		atomic_store_explicit(&next_look, 0, memory_order_relaxed);
	}
	pthread_mutex_unlock(&lock);
	if (!atomic_load(&booked[card]))
		return;
	follow_locked(card, limited.uuid);
	for (int i = 1; i < LAST_LOOKS && is_inexact(card) && atomic_load(&booked[card]); i++)
		follow_locked(card, limited.uuid);
	if (is_inexact(card)) /* the next allocation looks again */
		mark_unaccounted(card);
}

uint64_t context_overhead_unbooked(CUdevice device)
{
	struct device_limits limited;
	int card = place_of(device, &limited);

	if (card == USAGE_NO_CARD)
		return 0;
	context_overhead_follow_rarely(device);
	return usage_unaccounted_count(card) ? measure_all(card, limited.uuid) : 0;
}

/*
 * Whether nobody in the container knows what a context takes. What this process takes beside its context would count as
 * part of that, if it looked later.
 */
static bool is_to_be_learned(int card)
{
	return !usage_context_size(card) && !(atomic_load(&by_least) >> card & 1) && !nvml_lists_are_useless();
}

/* What may be held beside what is booked has become so much more. */
static void look_after_drift(int card, CUdevice device, uint64_t before, uint64_t bytes)
{
	struct device_limits limited;

	if (!passes(before, bytes, DRIFT) || !device_limits_of(device, &limited))
		return;
	mark_inexact(card);
	if (passes(before, bytes, DRIFT_MARKED) || is_to_be_learned(card) ||
	    booked[card] > usage_context_size(card) + DRIFT || !usage_has_room(card, device_limits_memory(&limited)))
		follow_locked(card, limited.uuid);
}

void context_overhead_drifted(CUdevice device, uint64_t bytes)
{
	struct device_limits limited;
	int card = place_of(device, &limited);

	if (card != USAGE_NO_CARD)
		look_after_drift(card, device, atomic_fetch_add(&drifted[card], bytes), bytes);
}

void context_overhead_padding_grew(int card, CUdevice device)
{
	look_after_drift(card, device, atomic_fetch_add(&drifted[card], DRIFT), DRIFT);
}

/* Whether there was a context to wait for that another thread makes, whose booking its end may give back. */
static bool waits_for_own(int card)
{
	if (context_lock_is_own() || !atomic_load(&expected[card]))
		return false;
	unsigned int depth = calls_step_out();
	for (int waited = 0; atomic_load(&expected[card]) && waited < PATIENCE_FOR_OWN; waited++)
		pause_for_others();
	calls_step_in(depth);
	return true;
}

bool context_overhead_fell(CUdevice device)
{
	struct device_limits limited;
	int card = place_of(device, &limited);

	if (card == USAGE_NO_CARD)
		return false;
	bool was_expected = waits_for_own(card);
	if (!(atomic_load(&drifted[card]) || atomic_load(&context_overhead_padding[card])))
		return was_expected;
	uint64_t before = atomic_load(&booked[card]);
	follow_locked(card, limited.uuid);
	return was_expected || atomic_load(&booked[card]) < before;
}

bool context_overhead_is_over(CUdevice device)
{
	struct device_limits limited;
	int card = place_of(device, &limited);

	if (card == USAGE_NO_CARD)
		return false;
	if (is_to_be_learned(card))
		follow_locked(card, limited.uuid);
	const struct usage_limit limit = device_limits_memory(&limited);
	uint64_t allowed = bounds_max(limit.memory / 400, ALLOWED);
	return usage_overhead_exceeds(card, limit, allowed);
}

void context_overhead_follow_rarely(CUdevice device)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
	if (now.tv_sec >= atomic_load_explicit(&next_look, memory_order_relaxed))
		context_overhead_follow(device);
}

bool context_overhead_is_unaccounted(void)
{
	return atomic_load_explicit(&unaccounted, memory_order_relaxed);
}
