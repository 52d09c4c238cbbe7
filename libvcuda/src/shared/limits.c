/*
 * Implements shared/limits.h. The file is mapped once. Each query compares the file's sequence counter with the
 * one read last and copies the file again if the counter has changed.
 */
#include "shared/limits.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "base/log.h"
#include "vgpu_limits.h"

enum {
	UPDATE_PATIENCE = 200, /* looks, 100 us apart, at an update under way: 20 ms; an update takes microseconds */
	OVERHEAD_MOST = 86400, /* seconds that the host's figure may still be valid; more: the clock was set back */
};

struct limits_known limits_known = {.state = LIMITS_ABSENT};

static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static const struct vgpu_limits *mapped;
static struct vgpu_limits last_good;
static uint64_t seen; /* the sequence of last_good, or of an update that did not end */

static uint64_t sequence_now(void)
{
	return __atomic_load_n(&mapped->sequence, __ATOMIC_ACQUIRE);
}

static bool well_formed(const struct vgpu_limits *limits)
{
	return limits->magic == VGPU_LIMITS_MAGIC && limits->version == VGPU_LIMITS_VERSION &&
	       limits->card_count <= VGPU_LIMITS_MAX_CARDS;
}

union content {
	struct vgpu_limits limits;
	uint64_t words[sizeof(struct vgpu_limits) / sizeof(uint64_t)];
};

/* Tries once to make a consistent copy. False: the host was writing. */
static bool copy_once(union content *copy)
{
	const union content *from = (const union content *)mapped;
	uint64_t before = sequence_now();

	if (before & 1)
		return false;
	for (size_t i = 0; i < sizeof(copy->words) / sizeof(copy->words[0]); i++)
		copy->words[i] = __atomic_load_n(&from->words[i], __ATOMIC_ACQUIRE); /* all before the load below */
	return __atomic_load_n(&mapped->sequence, __ATOMIC_RELAXED) == before;
}

/*
 * Copies the file's present content into last_good. False: the content is not well formed, or an update does not end.
 * `seen` is set in that case too, so that nobody waits again until the sequence changes.
 */
static bool refresh(void)
{
	const struct timespec pause = {.tv_nsec = 100000};
	union content copy;

	seen = sequence_now();
	for (int look = 0; look < UPDATE_PATIENCE; look++) {
		if (copy_once(&copy)) {
			if (well_formed(&copy.limits))
				last_good = copy.limits;
			seen = copy.limits.sequence;
			return well_formed(&copy.limits);
		}
		nanosleep(&pause, NULL);
	}
	return false;
}

static enum limits_state broken(const char *why)
{
	log_line(LOG_ERROR, "%s: %s; CUDA is refused: ask the node's administrator", VGPU_LIMITS_PATH, why);
	return LIMITS_BROKEN;
}

/* Sets *leased when a process of this container has a lease on the file: open(2) would wait for it. */
static enum limits_state map_limits_file(bool *leased)
{
	int fd = open(VGPU_LIMITS_PATH, O_RDONLY | O_CLOEXEC | O_NONBLOCK);

	*leased = fd < 0 && errno == EWOULDBLOCK;
	if (*leased) {
		log_once(LOG_ERROR, "%s: a process has a lease on it; CUDA is refused until it can be opened",
			 VGPU_LIMITS_PATH);
		return LIMITS_BROKEN;
	}
	if (fd < 0)
		return errno == ENOENT || errno == ENOTDIR ? LIMITS_ABSENT : broken(strerror(errno));
	off_t size = lseek(fd, 0, SEEK_END);
	void *address = MAP_FAILED;
	if (size == (off_t)sizeof(struct vgpu_limits))
		address = mmap(NULL, sizeof(struct vgpu_limits), PROT_READ, MAP_SHARED, fd, 0);
	close(fd);
	if (address == MAP_FAILED)
		return broken("the file does not have the size of a limits file of this version");
	mapped = address;
	limits_known.sequence = &mapped->sequence;
	return refresh() ? LIMITS_PRESENT
			 : broken("the file is not a limits file of this version, or it is half written");
}

static void limits_after_fork(void)
{
	pthread_mutex_init(&lock, NULL);
}

static void begin_once(void)
{
	pthread_atfork(NULL, NULL, limits_after_fork);
}

enum limits_state limits_load(void)
{
	bool leased = false;

	pthread_once(&once, begin_once);
	pthread_mutex_lock(&lock);
	if (!limits_known.loaded) {
		limits_known.state = map_limits_file(&leased);
		__atomic_store_n(&limits_known.loaded, !leased, __ATOMIC_RELEASE);
	}
	enum limits_state state = limits_known.state;
	pthread_mutex_unlock(&lock);
	return state;
}

/*
 * The host's figure while it is valid, else 0. The host updates it some seconds after a change here. It expires when
 * the host no longer renews it.
 */
static uint64_t current_overhead(const struct vgpu_limits_card *card)
{
	struct timespec now;

	if (!card->overhead)
		return 0;
	clock_gettime(CLOCK_REALTIME, &now);
	uint64_t seconds = (uint64_t)now.tv_sec;
	return seconds < card->overhead_until && card->overhead_until - seconds < OVERHEAD_MOST ? card->overhead : 0;
}

bool limits_of(const uint8_t uuid[16], struct card_limits *limits)
{
	bool listed = false;

	pthread_mutex_lock(&lock);
	if (sequence_now() != seen && !refresh())
		log_once(LOG_ERROR, "%s: an update was cut short; the last valid limits stay in force",
			 VGPU_LIMITS_PATH);
	for (uint32_t i = 0; i < last_good.card_count && !listed; i++) {
		const struct vgpu_limits_card *card = &last_good.cards[i];
		listed = !memcmp(card->uuid, uuid, sizeof(card->uuid));
		if (listed)
			*limits = (struct card_limits){card->memory, current_overhead(card),
						       card->flags & VGPU_CARD_OVERSUBSCRIBE, card->cores,
						       card->core_limit};
	}
	pthread_mutex_unlock(&lock);
	return listed;
}

bool limits_have_cores(void)
{
	bool found = false;

	pthread_mutex_lock(&lock);
	if (sequence_now() != seen)
		(void)refresh();
	for (uint32_t i = 0; i < last_good.card_count && !found; i++)
		found = last_good.cards[i].cores < 100;
	pthread_mutex_unlock(&lock);
	return found;
}

unsigned int limits_list(uint8_t uuids[][16], unsigned int room)
{
	unsigned int count = 0;

	pthread_mutex_lock(&lock);
	for (uint32_t i = 0; i < last_good.card_count && count < room; i++)
		if (last_good.cards[i].cores < 100)
			memcpy(uuids[count++], last_good.cards[i].uuid, 16);
	pthread_mutex_unlock(&lock);
	return count;
}
