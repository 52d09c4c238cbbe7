/*
 * Opens and maps the state's files, checks them, copies the cards, and locks the ledger. Handles fork: a child must not
 * use the driver of its parent. The other files of state/ change the mapped file under the lock that this file gives;
 * its structures are in state/state.h.
 */
#include "state/internal.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "state/realtime.h"

/* An OFD lock does not exclude threads of one process: take this mutex first, the file's lock second. */
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static char cards_path[PATH_MAX];
static int cards_fd = -1;
static int slots_fd = -1;
static struct sim_file *file;
static struct sim_header header;
static struct sim_card cards[SIM_MAX_CARDS];
static atomic_bool is_open;
static atomic_bool is_forked;
struct sim_timeline *sim_timeline;

static int open_in(const char *directory, const char *name)
{
	char path[PATH_MAX];

	if (snprintf(path, sizeof path, "%s/%s", directory, name) >= (int)sizeof path) {
		errno = ENAMETOOLONG;
		return -1;
	}
	return open(path, O_RDWR | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
}

static bool file_is_whole(int fd)
{
	struct stat st;

	return fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_size >= (off_t)sizeof(struct sim_file);
}

static bool card_is_sane(const struct sim_card *card)
{
	bool sane = card->reserved < card->memory && card->context > 0 && card->granularity > 0 &&
		    card->granularity <= 1u << 30 && card->cpu_count <= 4096 && card->cpu_first <= 4096 &&
		    card->link_count <= SIM_MAX_LINKS && memchr(card->name, 0, sizeof card->name) &&
		    memchr(card->serial, 0, sizeof card->serial);

	for (unsigned i = 0; sane && i < card->link_count; i++)
		sane = card->links[i] < header.card_count || card->links[i] >= SIM_LINK_SWITCH;
	return sane && (!card->instance || card->parent < header.card_count);
}

/* The copy is checked and used, not the mapping: any process may overwrite the file later. */
static bool copy_cards(void)
{
	header = file->header;
	if (memcmp(header.magic, SIM_MAGIC, sizeof header.magic) || header.version != SIM_VERSION ||
	    header.card_count > SIM_MAX_CARDS || header.slot_count != SIM_MAX_SLOTS ||
	    header.parties > SIM_MAX_PROCESSES || header.period_ns < 1000000 || header.slice_ns < 1000 ||
	    header.slice_ns > 1000000000u || header.switch_ns > 1000000000u || header.cpu_percent > 100)
		return false;
	memcpy(cards, file->cards, header.card_count * sizeof *cards);
	for (unsigned i = 0; i < header.card_count; i++)
		if (cards[i].instance || !card_is_sane(&cards[i]))
			return false;
	return true;
}

static enum sim_status map_whole_file(int fd)
{
	if (!file_is_whole(fd))
		return SIM_DAMAGED;
	file = mmap(NULL, sizeof *file, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (file == MAP_FAILED) {
		file = NULL;
		return SIM_SYSTEM;
	}
	if (copy_cards())
		return SIM_OK;
	munmap(file, sizeof *file);
	file = NULL;
	return SIM_DAMAGED;
}

/*
 * A mapping keeps its open file description, in children, too. The lock needs another one: else a child would keep the
 * lock of a parent that is killed while it holds it.
 */
static enum sim_status map_file(const char *directory)
{
	int fd = open_in(directory, "cards");

	if (fd < 0)
		return SIM_SYSTEM;
	enum sim_status status = map_whole_file(fd);
	close(fd);
	return status;
}

static enum sim_status open_files(void)
{
	const char *directory = getenv("VGPU_SIM_DIR");

	if (!directory || !*directory)
		directory = SIM_DEFAULT_DIR;
	if (snprintf(cards_path, sizeof cards_path, "%s/cards", directory) >= (int)sizeof cards_path)
		return SIM_SYSTEM;
	cards_fd = open_in(directory, "cards");
	if (cards_fd < 0)
		return errno == ENOENT || errno == ENOTDIR ? SIM_MISSING : SIM_SYSTEM;
	enum sim_status status = map_file(directory);
	/* An earlier failure may have left slots_fd open. Closing it would drop this process' lock; see state/state.h. */
	if (status == SIM_OK && slots_fd < 0)
		slots_fd = open_in(directory, "slots");
	if (status == SIM_OK && slots_fd < 0)
		status = SIM_DAMAGED;
	if (status != SIM_OK) {
		close(cards_fd);
		cards_fd = -1;
	}
	return status;
}

__attribute__((constructor)) static void make_mutex(void)
{
	sim_realtime_inherit(&mutex);
}

static void before_fork(void)
{
	pthread_mutex_lock(&mutex);
}

static void after_fork_in_parent(void)
{
	pthread_mutex_unlock(&mutex);
}

/* The child shares its parent's open file description, and with it the lock: it needs a description of its own. */
static void after_fork_in_child(void)
{
	if (cards_fd >= 0) {
		close(cards_fd);
		cards_fd = -1;
		atomic_store(&is_forked, true);
	}
	pthread_mutex_unlock(&mutex);
}

enum sim_status sim_state_open(void)
{
	static bool watches_forks;
	enum sim_status status = SIM_OK;

	if (atomic_load(&is_open))
		return SIM_OK;
	pthread_mutex_lock(&mutex);
	if (!watches_forks)
		watches_forks = pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child) == 0;
	if (!watches_forks)
		status = SIM_SYSTEM;
	else if (!atomic_load(&is_open))
		status = open_files();
	if (status == SIM_OK) {
		sim_timeline = header.is_virtual ? &file->timeline : NULL;
		atomic_store(&is_open, true);
	}
	pthread_mutex_unlock(&mutex);
	return status;
}

bool sim_state_forked(void)
{
	return atomic_load(&is_forked);
}

/* Instances are numbered anew when the layout changes: what is not the same number is not the same instance. */
bool sim_state_gone(unsigned card)
{
	return cards[card].instance &&
	       __atomic_load_n(&file->cards[card].instance, __ATOMIC_ACQUIRE) != cards[card].instance;
}

bool sim_state_mig(unsigned card, bool pending)
{
	struct sim_file *locked;

	if (sim_state_lock(&locked) != SIM_OK)
		return false;
	bool is_on = locked->boards[card].mig_mode[pending] == 1;
	sim_state_unlock();
	return is_on;
}

/* An entry that is free, or damaged, is left as it is: whoever has it sees that it is gone. */
static void copy_instances(void)
{
	for (unsigned i = header.card_count; i < SIM_MAX_CARDS; i++) {
		struct sim_card now = file->cards[i];
		if (now.instance && now.instance != cards[i].instance && card_is_sane(&now))
			cards[i] = now;
	}
}

static bool comes_before(const struct sim_card *a, const struct sim_card *b)
{
	return a->gi < b->gi || (a->gi == b->gi && a->ci < b->ci);
}

unsigned sim_state_instances(unsigned parent, unsigned entries[SIM_MAX_CARDS])
{
	struct sim_file *locked;
	unsigned count = 0;

	if (sim_state_lock(&locked) != SIM_OK)
		return 0;
	copy_instances();
	for (unsigned i = header.card_count; i < SIM_MAX_CARDS; i++) {
		if (!cards[i].instance || cards[i].parent != parent || cards[i].ci == SIM_NO_COMPUTE ||
		    sim_state_gone(i))
			continue;
		unsigned at = count++;
		for (; at && comes_before(&cards[i], &cards[entries[at - 1]]); at--)
			entries[at] = entries[at - 1];
		entries[at] = i;
	}
	sim_state_unlock();
	return count;
}

unsigned sim_state_card_count(void)
{
	return header.card_count;
}

const struct sim_card *sim_state_card(unsigned card)
{
	return &cards[card];
}

static bool has_link(unsigned from, unsigned end)
{
	for (unsigned i = 0; i < cards[from].link_count; i++)
		if (cards[from].links[i] == end)
			return true;
	return false;
}

bool sim_state_linked(unsigned a, unsigned b)
{
	return has_link(a, b) || (has_link(a, SIM_LINK_SWITCH) && has_link(b, SIM_LINK_SWITCH));
}

const struct sim_header *sim_state_header(void)
{
	return &header;
}

bool sim_state_has_nodes(void)
{
	return header.device_nodes != 0;
}

int sim_state_slots_fd(void)
{
	return slots_fd;
}

int sim_state_open_cards(void)
{
	return open(cards_path, O_RDWR | O_CLOEXEC);
}

static enum sim_status lock_file(void)
{
	struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 0, .l_len = 1};

	if (cards_fd < 0)
		cards_fd = open(cards_path, O_RDWR | O_CLOEXEC);
	while (fcntl(cards_fd, F_OFD_SETLKW, &lock) != 0)
		if (errno != EINTR)
			return SIM_SYSTEM;
	/* If another process has truncated the file since it was mapped, touching it would raise SIGBUS. */
	return file_is_whole(cards_fd) ? SIM_OK : SIM_DAMAGED;
}

static void unlock_file(void)
{
	struct flock lock = {.l_type = F_UNLCK, .l_whence = SEEK_SET, .l_start = 0, .l_len = 1};

	fcntl(cards_fd, F_OFD_SETLK, &lock);
}

enum sim_status sim_state_lock(struct sim_file **locked)
{
	pthread_mutex_lock(&mutex);
	sim_realtime_begin();
	enum sim_status status = lock_file();
	if (status != SIM_OK) {
		unlock_file();
		sim_realtime_end();
		pthread_mutex_unlock(&mutex);
		return status;
	}
	*locked = file;
	return SIM_OK;
}

void sim_state_unlock(void)
{
	unlock_file();
	sim_realtime_end();
	pthread_mutex_unlock(&mutex);
}
