/*
 * Which slot of the ledger belongs to this process, and whether the owner of a slot lives. What stands in the slots is
 * in state/ledger.c.
 */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <unistd.h>

#include "state/internal.h"

static int own = -1; /* changes under the lock */

/* A forked child has none. */
int sim_slots_own(void)
{
	return sim_state_forked() ? -1 : own;
}

bool sim_slots_lives(unsigned slot, pid_t *pid)
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

enum sim_status sim_slots_ensure(struct sim_file *file)
{
	pid_t pid;

	/* If another process wiped the file, this process' figures are gone: later releases would make them negative. */
	if (own >= 0)
		return file->slots[own].token ? SIM_OK : SIM_DAMAGED;
	for (unsigned i = 0; i < SIM_MAX_SLOTS; i++)
		if (!sim_slots_lives(i, &pid) && claim_slot(file, i))
			return SIM_OK;
	return SIM_FULL;
}
