/*
 * Memory of the ledger that several processes hold. Each of them has a lock on the memory's byte of `cards`, by an open
 * file of its own or by one that it got from another process, so that the kernel drops what a killed process held.
 */
#include "state/internal.h"

#include <fcntl.h>
#include <unistd.h>

static struct flock lock_of(int number, short type)
{
	return (struct flock){.l_type = type, .l_whence = SEEK_SET, .l_start = SIM_SHARE_BYTE + number, .l_len = 1};
}

static bool is_held_by_owner(const struct sim_file *file, const struct sim_shared_memory *share)
{
	return share->is_held && share->slot < SIM_MAX_SLOTS && file->slots[share->slot].token == share->token;
}

uint64_t sim_shares_sum(const struct sim_file *file, unsigned card)
{
	uint64_t sum = 0;

	for (unsigned i = 0; i < SIM_MAX_SHARES; i++)
		if (file->shares[i].size && file->shares[i].card == card && !is_held_by_owner(file, &file->shares[i]))
			sum += file->shares[i].size;
	return sum;
}

static bool is_let_go(int fd, int number)
{
	struct flock lock = lock_of(number, F_WRLCK);

	return fd >= 0 && fcntl(fd, F_OFD_GETLK, &lock) == 0 && lock.l_type == F_UNLCK;
}

void sim_shares_bury(struct sim_file *file)
{
	int fd = -1;

	for (int i = 0; i < (int)SIM_MAX_SHARES; i++) {
		if (!file->shares[i].size || is_held_by_owner(file, &file->shares[i]))
			continue;
		if (fd < 0)
			fd = sim_state_open_cards();
		if (is_let_go(fd, i))
			file->shares[i].size = 0;
	}
	if (fd >= 0)
		close(fd);
}

/* Importers may still hold what the entry was used for before, see sim_shares_forget. */
static int free_number(const struct sim_file *file)
{
	int fd = sim_state_open_cards(), number = -1;

	for (int i = 0; i < (int)SIM_MAX_SHARES && number < 0; i++)
		if (!file->shares[i].size && is_let_go(fd, i))
			number = i;
	if (fd >= 0)
		close(fd);
	return number;
}

int sim_shares_add(unsigned card, uint64_t bytes, uint32_t *generation)
{
	struct sim_file *file;

	if (sim_state_lock(&file) != SIM_OK)
		return -1;
	sim_shares_bury(file);
	int number = free_number(file);
	if (number >= 0 && sim_slots_ensure(file) == SIM_OK) {
		unsigned slot = (unsigned)sim_slots_own();
		*generation = file->shares[number].generation + 1;
		file->shares[number] =
			(struct sim_shared_memory){file->slots[slot].token, bytes, slot, card, 1, *generation};
	}
	sim_state_unlock();
	return number;
}

/* Under the state's lock, so that the exporter cannot let go of the memory between the check and the lock. */
static bool hold(const struct sim_file *file, int fd, int number, uint32_t generation)
{
	const struct sim_shared_memory *share = &file->shares[number];
	struct flock lock = lock_of(number, F_RDLCK);

	return share->size && share->generation == generation && is_held_by_owner(file, share) &&
	       fcntl(fd, F_OFD_SETLK, &lock) == 0;
}

int sim_shares_hold(int number, uint32_t generation)
{
	struct sim_file *file;
	int fd = number < 0 || number >= (int)SIM_MAX_SHARES ? -1 : sim_state_open_cards();

	if (fd < 0)
		return -1;
	bool is_held = sim_state_lock(&file) == SIM_OK;
	if (is_held) {
		is_held = hold(file, fd, number, generation);
		sim_state_unlock();
	}
	if (is_held)
		return fd;
	close(fd);
	return -1;
}

void sim_shares_release(int number)
{
	struct sim_file *file;

	if (sim_state_lock(&file) != SIM_OK)
		return;
	struct sim_shared_memory *share = &file->shares[number];
	uint64_t *allocated = &file->slots[sim_slots_own()].allocated[share->card];
	share->is_held = 0;
	if (*allocated >= share->size)
		__atomic_store_n(allocated, *allocated - share->size, __ATOMIC_RELAXED);
	sim_state_unlock();
}

void sim_shares_forget(int number)
{
	struct sim_file *file;

	if (sim_state_lock(&file) != SIM_OK)
		return;
	file->shares[number].size = 0;
	sim_state_unlock();
}
