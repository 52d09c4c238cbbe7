/*
 * The ledger: one slot per process with the memory that it uses on each card, and the sums over all slots. This file
 * claims slots, charges and releases memory, and frees the slots of dead processes. Opening and locking the file belong
 * to state/state.c; what an allocation is belongs to cuda/allocation.c.
 */
#include "state/internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <unistd.h>

enum { LOOKS = 4, MOMENT = 2000 /* us */ }; /* see note_most */

static int own = -1; /* this process' slot; changes under the lock */

int sim_ledger_own_slot(void)
{
	return own;
}

void sim_ledger_forked(void)
{
	own = -1;
}

/* Whether the owner of the slot lives. Stores the owner's pid; 0: this PID namespace cannot see it. */
bool sim_ledger_slot_lives(unsigned slot, pid_t *pid)
{
	struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = slot, .l_len = 1};

	*pid = 0;
	if (fcntl(sim_state_slots_fd(), F_OFD_GETLK, &lock) != 0)
		return true; /* if the kernel gives no answer, the slot is not taken away */
	if (lock.l_type == F_UNLCK)
		return false;
	*pid = lock.l_pid > 0 ? lock.l_pid : 0;
	return true;
}

static unsigned used_slots(const struct sim_file *file)
{
	return file->header.slot_high < SIM_MAX_SLOTS ? file->header.slot_high : SIM_MAX_SLOTS;
}

static void bury_the_dead(struct sim_file *file)
{
	pid_t pid;

	for (unsigned i = 0; i < used_slots(file); i++)
		if (file->slots[i].token && !sim_ledger_slot_lives(i, &pid))
			file->slots[i].token = 0;
	sim_shares_bury(file);
}

static bool claim_slot(struct sim_file *file, unsigned index)
{
	struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = index, .l_len = 1};
	struct sim_slot *slot = &file->slots[index];
	const char *group = getenv("VGPU_SIM_GROUP");
	uint64_t token;

	if (fcntl(sim_state_slots_fd(), F_SETLK, &lock) != 0)
		return false;
	memset(slot, 0, sizeof *slot);
	slot->pid = getpid();
	slot->group = group ? (uint32_t)strtoul(group, NULL, 10) : 0;
	prctl(PR_GET_NAME, slot->command);
	slot->command[sizeof slot->command - 1] = 0;
	if (getrandom(&token, sizeof token, 0) != sizeof token)
		token = (uint64_t)slot->pid;
	if (file->header.slot_high <= index)
		file->header.slot_high = index + 1;
	__atomic_store_n(&slot->token, token | 1, __ATOMIC_RELEASE);
	own = (int)index;
	return true;
}

enum sim_status sim_ledger_ensure_slot(struct sim_file *file)
{
	pid_t pid;

	/* If another process wiped the file, this process' figures are gone: later releases would make them negative. */
	if (own >= 0)
		return file->slots[own].token ? SIM_OK : SIM_DAMAGED;
	for (unsigned i = 0; i < SIM_MAX_SLOTS; i++)
		if (!sim_ledger_slot_lives(i, &pid) && claim_slot(file, i))
			return SIM_OK;
	return SIM_FULL;
}

static uint64_t add(uint64_t a, uint64_t b)
{
	/* A slot may contain garbage: the sum must not wrap to "nothing used". */
	return a > UINT64_MAX - b ? UINT64_MAX : a + b;
}

static uint64_t total(const struct sim_file *file, unsigned card)
{
	uint64_t sum = sim_shares_sum(file, card);

	for (unsigned i = 0; i < used_slots(file); i++)
		if (file->slots[i].token)
			sum = add(sum, add(file->slots[i].allocated[card], file->slots[i].context[card]));
	return sum;
}

static bool fits(const struct sim_file *file, unsigned card, uint64_t bytes)
{
	uint64_t capacity = sim_state_card(card)->memory - sim_state_card(card)->reserved;
	uint64_t used = total(file, card);

	return used <= capacity && bytes <= capacity - used;
}

/* Looking for dead processes costs a system call per slot, so the function looks only when the card seems full. */
static bool fits_after_all(struct sim_file *file, unsigned card, uint64_t bytes)
{
	if (fits(file, card, bytes))
		return true;
	bury_the_dead(file);
	return fits(file, card, bytes);
}

/*
 * What ended processes held, and what closed descriptors kept, is no part of it. The kernel takes a file that is closed
 * out of epoll instances before it lets go of what the file keeps, so what nobody owns gets a moment to go.
 */
static void note_most(struct sim_file *file, unsigned card)
{
	uint64_t used = total(file, card);

	for (int look = 0; look < LOOKS && used > file->boards[card].most_used; look++) {
		if (look)
			usleep(MOMENT);
		bury_the_dead(file);
		used = total(file, card);
		if (!sim_shares_sum(file, card))
			break;
	}
	if (used > file->boards[card].most_used)
		file->boards[card].most_used = used;
}

static enum sim_status charge(struct sim_file *file, unsigned card, uint64_t *figure, uint64_t bytes)
{
	if (!fits_after_all(file, card, bytes))
		return SIM_NO_MEMORY;
	__atomic_store_n(figure, *figure + bytes, __ATOMIC_RELAXED);
	note_most(file, card);
	return SIM_OK;
}

/* An unknown value, or a damaged file, counts as loaded: later calls report the damage where it matters. */
enum sim_status sim_ledger_driver_status(void)
{
	struct sim_file *file;

	if (sim_state_lock(&file) != SIM_OK)
		return SIM_OK;
	uint32_t driver = file->header.driver;
	sim_state_unlock();
	return driver == SIM_UNLOADED ? SIM_MISSING : driver == SIM_OTHER_VERSION ? SIM_MISMATCH : SIM_OK;
}

enum sim_status sim_ledger_card_status(unsigned card)
{
	struct sim_file *file;

	if (sim_state_lock(&file) != SIM_OK)
		return SIM_OK;
	bool is_lost = file->boards[card].is_lost == SIM_LOST_MARK;
	sim_state_unlock();
	return is_lost ? SIM_LOST : SIM_OK;
}

enum sim_status sim_ledger_attach(unsigned card)
{
	struct sim_file *file;
	enum sim_status status = sim_state_lock(&file);

	if (status != SIM_OK)
		return status;
	status = file->boards[card].is_lost == SIM_LOST_MARK ? SIM_LOST : sim_ledger_ensure_slot(file);
	if (status == SIM_OK && file->slots[own].context[card] == 0)
		status = charge(file, card, &file->slots[own].context[card], sim_state_card(card)->context);
	sim_state_unlock();
	return status;
}

void sim_ledger_detach(unsigned card)
{
	struct sim_file *file;

	if (sim_state_lock(&file) != SIM_OK)
		return;
	if (own >= 0)
		__atomic_store_n(&file->slots[own].context[card], 0, __ATOMIC_RELAXED);
	sim_state_unlock();
}

enum sim_status sim_ledger_reserve(unsigned card, uint64_t bytes)
{
	struct sim_file *file;
	enum sim_status status = sim_state_lock(&file);

	if (status != SIM_OK)
		return status;
	status = file->boards[card].is_lost == SIM_LOST_MARK ? SIM_LOST : sim_ledger_ensure_slot(file);
	if (status == SIM_OK)
		status = charge(file, card, &file->slots[own].allocated[card], bytes);
	sim_state_unlock();
	return status;
}

void sim_ledger_release(unsigned card, uint64_t bytes)
{
	struct sim_file *file;

	if (sim_state_lock(&file) != SIM_OK)
		return;
	if (own >= 0 && file->slots[own].allocated[card] >= bytes)
		__atomic_store_n(&file->slots[own].allocated[card], file->slots[own].allocated[card] - bytes, __ATOMIC_RELAXED);
	sim_state_unlock();
}

enum sim_status sim_ledger_used(unsigned card, uint64_t *bytes)
{
	struct sim_file *file;
	enum sim_status status = sim_state_lock(&file);

	if (status != SIM_OK)
		return status;
	bury_the_dead(file);
	*bytes = total(file, card);
	sim_state_unlock();
	return SIM_OK;
}

static void describe(const struct sim_slot *slot, unsigned card, pid_t pid, struct sim_process *process)
{
	process->pid = pid ? pid : slot->pid;
	process->known = pid != 0;
	process->used = add(slot->allocated[card], slot->context[card]);
	memcpy(process->command, slot->command, sizeof process->command);
	process->command[sizeof process->command - 1] = 0;
}

enum sim_status sim_ledger_processes(unsigned card, struct sim_process *list, unsigned size, unsigned *count)
{
	struct sim_file *file;
	enum sim_status status = sim_state_lock(&file);
	pid_t pid;

	if (status != SIM_OK)
		return status;
	*count = 0;
	for (unsigned i = 0; i < used_slots(file); i++) {
		if (!file->slots[i].token || !file->slots[i].context[card] || !sim_ledger_slot_lives(i, &pid))
			continue;
		if (*count < size)
			describe(&file->slots[i], card, pid, &list[*count]);
		*count += 1;
	}
	sim_state_unlock();
	return SIM_OK;
}

enum sim_status sim_ledger_board(unsigned card, struct sim_board *board)
{
	struct sim_file *file;
	enum sim_status status = sim_state_lock(&file);

	if (status != SIM_OK)
		return status;
	*board = file->boards[card];
	sim_state_unlock();
	return SIM_OK;
}

pid_t sim_ledger_pid_of(unsigned slot, uint64_t token)
{
	struct sim_file *file;
	pid_t pid = 0;

	if (slot >= SIM_MAX_SLOTS || sim_state_lock(&file) != SIM_OK)
		return 0;
	if (file->slots[slot].token == token && sim_ledger_slot_lives(slot, &pid) && !pid)
		pid = file->slots[slot].pid;
	if (file->slots[slot].token != token)
		pid = 0;
	sim_state_unlock();
	return pid;
}
