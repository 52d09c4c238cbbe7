/*
 * The ledger: one slot per process with the memory that it uses on each card, and the sums over all slots. This file
 * charges and releases memory, and frees the slots of dead processes. Claiming a slot belongs to state/slots.c, opening
 * and locking the file to state/state.c; what an allocation is belongs to cuda/memory/allocation.c.
 */
#include "state/clock.h"
#include "state/internal.h"

#include <string.h>
#include <unistd.h>

enum { LOOKS = 4, MOMENT = 2000 /* us */ }; /* see note_most */

static unsigned used_slots(const struct sim_file *file)
{
	return file->header.slot_high < SIM_MAX_SLOTS ? file->header.slot_high : SIM_MAX_SLOTS;
}

static void bury_the_dead(struct sim_file *file)
{
	pid_t pid;

	for (unsigned i = 0; i < used_slots(file); i++)
		if (file->slots[i].token && !sim_slots_lives(i, &pid))
			file->slots[i].token = 0;
	sim_shares_bury(file);
}

static uint64_t add(uint64_t a, uint64_t b)
{
	/* A slot may contain garbage: the sum must not wrap to "nothing used". */
	return a > UINT64_MAX - b ? UINT64_MAX : a + b;
}

/* What is used of the entry alone. */
static uint64_t used_of(const struct sim_file *file, unsigned card)
{
	uint64_t sum = sim_shares_sum(file, card);

	for (unsigned i = 0; i < used_slots(file); i++)
		if (file->slots[i].token)
			sum = add(sum, add(file->slots[i].allocated[card], file->slots[i].context[card]));
	return sum;
}

static bool is_instance_of(const struct sim_card *entry, unsigned card)
{
	return entry->instance && entry->parent == card;
}

/* A card's memory has that of its instances. The compute instances of one GPU instance have the same memory. */
static uint64_t total(const struct sim_file *file, unsigned card)
{
	const struct sim_card *self = &file->cards[card];
	uint64_t sum = used_of(file, card);

	for (unsigned i = sim_state_card_count(); i < SIM_MAX_CARDS; i++) {
		const struct sim_card *other = &file->cards[i];
		if (i != card && (self->instance ? is_instance_of(other, self->parent) && other->gi == self->gi
						 : is_instance_of(other, card)))
			sum = add(sum, used_of(file, i));
	}
	return sum;
}

static bool is_lost(const struct sim_file *file, unsigned card)
{
	unsigned board = sim_state_card(card)->instance ? sim_state_card(card)->parent : card;

	return sim_state_gone(card) || file->boards[board].is_lost == SIM_LOST_MARK;
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
	enum sim_status present = is_lost(file, card) ? SIM_LOST : SIM_OK;
	sim_state_unlock();
	return present;
}

static void unlist(struct sim_slot *slot, unsigned card, int64_t change)
{
	__atomic_store_n(&slot->unlisted[card], slot->unlisted[card] + (uint64_t)change, __ATOMIC_RELAXED);
}

static uint64_t context_bytes(const struct sim_file *file, unsigned card, const struct sim_slot *slot)
{
	const struct sim_header *header = sim_state_header();
	uint64_t spread = (slot - file->slots) % 2 ? header->context_spread_bytes : 0;

	return sim_state_card(card)->context + header->context_unlisted_bytes + spread;
}

static enum sim_status attach(struct sim_file *file, unsigned card, struct sim_slot *slot)
{
	if (slot->context[card] && !sim_state_header()->each_context)
		return SIM_OK;
	enum sim_status status = charge(file, card, &slot->context[card], context_bytes(file, card, slot));
	if (status == SIM_OK)
		unlist(slot, card, sim_state_header()->context_unlisted_bytes);
	return status;
}

enum sim_status sim_ledger_attach(unsigned card)
{
	struct sim_file *file;
	enum sim_status status = sim_state_lock(&file);

	if (status != SIM_OK)
		return status;
	status = is_lost(file, card) ? SIM_LOST : sim_slots_ensure(file);
	if (status == SIM_OK)
		status = attach(file, card, &file->slots[sim_slots_own()]);
	sim_state_unlock();
	return status;
}

static void detach(const struct sim_file *file, unsigned card, struct sim_slot *slot)
{
	uint64_t bytes = context_bytes(file, card, slot);

	if (slot->context[card] < bytes)
		return;
	__atomic_store_n(&slot->context[card], slot->context[card] - bytes, __ATOMIC_RELAXED);
	unlist(slot, card, -(int64_t)sim_state_header()->context_unlisted_bytes);
}

void sim_ledger_detach(unsigned card, bool is_last)
{
	struct sim_file *file;

	if ((!is_last && !sim_state_header()->each_context) || sim_state_lock(&file) != SIM_OK)
		return;
	if (sim_slots_own() >= 0)
		detach(file, card, &file->slots[sim_slots_own()]);
	sim_state_unlock();
}

void sim_ledger_unlist(unsigned card, int64_t change)
{
	struct sim_file *file;

	if (!change || sim_state_lock(&file) != SIM_OK)
		return;
	if (sim_slots_own() >= 0)
		unlist(&file->slots[sim_slots_own()], card, change);
	sim_state_unlock();
}

enum sim_status sim_ledger_reserve(unsigned card, uint64_t bytes)
{
	struct sim_file *file;
	enum sim_status status = sim_state_lock(&file);

	if (status != SIM_OK)
		return status;
	status = is_lost(file, card) ? SIM_LOST : sim_slots_ensure(file);
	if (status == SIM_OK)
		status = charge(file, card, &file->slots[sim_slots_own()].allocated[card], bytes);
	sim_state_unlock();
	return status;
}

void sim_ledger_release(unsigned card, uint64_t bytes)
{
	struct sim_file *file;

	if (sim_state_lock(&file) != SIM_OK)
		return;
	if (sim_slots_own() >= 0 && file->slots[sim_slots_own()].allocated[card] >= bytes)
		__atomic_fetch_sub(&file->slots[sim_slots_own()].allocated[card], bytes, __ATOMIC_RELAXED);
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

enum sim_status sim_ledger_shown(unsigned card, uint64_t *bytes)
{
	uint64_t lag = (uint64_t)sim_state_header()->nvml_lag_ms * 1000000u;
	enum sim_status status = sim_ledger_used(card, bytes);
	struct sim_file *file;

	if (status != SIM_OK || !lag)
		return status;
	status = sim_state_lock(&file);
	if (status != SIM_OK)
		return status;
	struct sim_board *board = &file->boards[card];
	uint64_t now = sim_clock_now();
	if (!board->shown_at || now - board->shown_at >= lag) {
		board->shown_used = *bytes;
		board->shown_at = now;
	}
	*bytes = board->shown_used;
	sim_state_unlock();
	return SIM_OK;
}

static void describe(const struct sim_file *file, const struct sim_slot *slot, unsigned card, pid_t pid,
		     struct sim_process *process)
{
	const struct sim_card *entry = &file->cards[card];

	process->gi = entry->instance ? entry->gi : SIM_NO_COMPUTE;
	process->ci = entry->instance ? entry->ci : SIM_NO_COMPUTE;
	process->pid = pid ? pid : slot->pid;
	process->known = pid != 0;
	uint64_t used = add(slot->allocated[card], slot->context[card]);
	process->used = used > slot->unlisted[card] ? used - slot->unlisted[card] : 0;
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
	for (unsigned entry = 0; entry < SIM_MAX_CARDS; entry++) {
		if (entry != card && !is_instance_of(&file->cards[entry], card))
			continue;
		for (unsigned i = 0; i < used_slots(file); i++) {
			if (!file->slots[i].token || !file->slots[i].context[entry] || !sim_slots_lives(i, &pid))
				continue;
			if (*count < size)
				describe(file, &file->slots[i], entry, pid, &list[*count]);
			*count += 1;
		}
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

pid_t sim_ledger_pid_of(unsigned slot, uint64_t token, bool *known)
{
	struct sim_file *file;
	pid_t pid = 0;

	if (slot >= SIM_MAX_SLOTS || sim_state_lock(&file) != SIM_OK)
		return 0;
	bool lives = file->slots[slot].token == token && sim_slots_lives(slot, &pid);
	*known = pid != 0;
	if (lives && !pid)
		pid = file->slots[slot].pid;
	if (file->slots[slot].token != token)
		pid = 0;
	sim_state_unlock();
	return pid;
}
