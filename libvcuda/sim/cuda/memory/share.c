/*
 * Bytes of memory that other processes can map: a file without a name, whose last page contains its card and size. A
 * process passes it on as a descriptor (exported physical memory), or by its pid and descriptor number (IPC handles).
 * The latter needs both processes in one PID namespace, as on a real driver.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cuda/memory/share.h"

#define PAGE 4096u
#define CHUNK (1u << 20)

struct note {
	char magic[8] __attribute__((nonstring)); /* without a NUL */
	uint64_t size;
	uint8_t uuid[16];
};

int sim_share_create(unsigned card, size_t size)
{
	struct note note = {.magic = "vgpu-shr", .size = size};
	int fd = memfd_create("vgpu-sim", MFD_CLOEXEC);

	if (fd < 0)
		return -1;
	memcpy(note.uuid, sim_state_card(card)->uuid, sizeof note.uuid);
	off_t end = (off_t)((size + PAGE - 1) / PAGE * PAGE);
	if (ftruncate(fd, end + PAGE) == 0 && pwrite(fd, &note, sizeof note, end) == sizeof note)
		return fd;
	close(fd);
	return -1;
}

bool sim_share_adopt(int fd, unsigned *card, size_t *size)
{
	struct note note;
	struct stat st;

	if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode) || st.st_size < PAGE ||
	    pread(fd, &note, sizeof note, st.st_size - PAGE) != sizeof note || memcmp(note.magic, "vgpu-shr", 8) ||
	    !note.size || note.size > (uint64_t)st.st_size - PAGE)
		return false;
	for (*card = 0; *card < SIM_MAX_CARDS; *card += 1)
		if (memcmp(sim_state_card(*card)->uuid, note.uuid, sizeof note.uuid) == 0 &&
		    sim_device_ordinal(*card) >= 0)
			break;
	*size = note.size;
	return *card < SIM_MAX_CARDS;
}

static bool is_empty(char *at, size_t bytes)
{
	unsigned char resident[CHUNK / PAGE];

	if (mincore(at, bytes, resident) != 0)
		return false;
	return !memchr(resident, 1, (bytes + PAGE - 1) / PAGE);
}

static bool move_into(int fd, char *backing, size_t size)
{
	for (size_t at = 0; at < size; at += CHUNK) {
		size_t bytes = size - at < CHUNK ? size - at : CHUNK;
		if (!is_empty(backing + at, bytes) && pwrite(fd, backing + at, bytes, (off_t)at) != (ssize_t)bytes)
			return false;
	}
	return mmap(backing, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) != MAP_FAILED;
}

int sim_share_backing(struct sim_allocation *allocation)
{
	char *backing = sim_allocation_backing(allocation);

	if (allocation->share_fd || !backing)
		return backing ? allocation->share_fd : -1;
	int fd = sim_share_create(allocation->card, allocation->mapped);
	if (fd < 0)
		return -1;
	sim_allocation_bytes_begin_change();
	bool moved = move_into(fd, backing, allocation->mapped);
	sim_allocation_bytes_end();
	if (!moved) {
		close(fd);
		return -1;
	}
	allocation->share_fd = fd;
	return fd;
}

/*
 * The descriptor of exported memory is a socket, in whose queue the file waits with the lock that keeps the memory.
 * Like a real driver's descriptor it can be polled, and keeps the memory until it is closed everywhere.
 */
union control {
	struct cmsghdr header;
	char bytes[CMSG_SPACE(2 * sizeof(int))];
};

int sim_share_export(int fd, int life)
{
	int ends[2], both[2] = {fd, life};
	union control control = {.bytes = {0}};
	struct iovec byte = {"m", 1};
	struct msghdr message = {
		.msg_iov = &byte, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};

	if (life < 0 || socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0, ends) != 0)
		return -1;
	control.header = (struct cmsghdr){CMSG_LEN(sizeof both), SOL_SOCKET, SCM_RIGHTS};
	memcpy(CMSG_DATA(&control.header), both, sizeof both);
	bool is_sent = sendmsg(ends[0], &message, 0) == 1;
	close(ends[0]);
	if (is_sent)
		return ends[1];
	close(ends[1]);
	return -1;
}

bool sim_share_import(int exported, int *fd, int *life)
{
	union control control = {.bytes = {0}};
	char text[2];
	struct iovec byte = {text, sizeof text};
	struct msghdr message = {
		.msg_iov = &byte, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
	int both[2];

	if (recvmsg(exported, &message, MSG_PEEK | MSG_DONTWAIT | MSG_CMSG_CLOEXEC) != 1 ||
	    control.header.cmsg_len != CMSG_LEN(sizeof both) || control.header.cmsg_type != SCM_RIGHTS)
		return false;
	memcpy(both, CMSG_DATA(&control.header), sizeof both);
	*fd = both[0];
	*life = both[1];
	return true;
}
