/*
 * Implements input.h. One byte more than the limit is read of stdin, and a file's size is checked, so that input of
 * exactly the limit is accepted and longer input is marked as oversized.
 */
#include "input.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

/* Bytes read and dropped after STATE_MAX, so that a runtime that is still writing does not meet a closed pipe. */
#define DRAIN_MAX ((size_t)16 << 20)

/* The additional byte distinguishes a state of the largest size from a longer one. */
static char state[STATE_MAX + 1];

#define NO_DEADLINE (-1L)

long input_milliseconds(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* Waits until a read(2) does not block. False, with errno: not before the deadline. */
static bool wait_for_input(int fd, long deadline)
{
	struct pollfd input = {.fd = fd, .events = POLLIN};
	long left;

	if (deadline == NO_DEADLINE)
		return true;
	while ((left = deadline - input_milliseconds()) > 0) {
		int ready = poll(&input, 1, (int)left);
		if (ready > 0 || (ready < 0 && errno != EINTR))
			return true; /* read(2) finds out what is wrong with it */
	}
	errno = ETIMEDOUT;
	return false;
}

/* Sets `have` to the number of bytes read, which is less than `size` only at the end of the file or with an errno. */
static int read_full(int fd, char *to, size_t size, long deadline, size_t *have)
{
	*have = 0;
	while (*have < size) {
		ssize_t n = wait_for_input(fd, deadline) ? read(fd, to + *have, size - *have) : -1;
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return errno;
		if (n == 0)
			break;
		*have += (size_t)n;
	}
	return 0;
}

static void drain_stdin(long deadline)
{
	static char scrap[1 << 16];
	size_t n;

	for (size_t i = 0; i < DRAIN_MAX / sizeof scrap; i++)
		if (read_full(STDIN_FILENO, scrap, sizeof scrap, deadline, &n) || n < sizeof scrap)
			return;
}

int input_read_stdin(struct input *input)
{
	long deadline = input_milliseconds() + VGPU_STDIN_SECONDS * 1000L;
	size_t n;
	int error = read_full(STDIN_FILENO, state, sizeof state, deadline, &n);

	*input = (struct input){.at = state, .oversized = n > STATE_MAX};
	input->len = input->oversized ? STATE_MAX : n;
	if (input->oversized)
		drain_stdin(deadline);
	return error;
}

static int read_open_file(int fd, struct input *input, struct stat *st)
{
	size_t size;
	char *to;

	if (fstat(fd, st) < 0)
		return errno;
	if (!S_ISREG(st->st_mode))
		return EINVAL;
	input->oversized = (size_t)st->st_size > CONFIG_MAX;
	size = input->oversized ? CONFIG_MAX : (size_t)st->st_size;
	to = mmap(NULL, size + 1, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (to == MAP_FAILED)
		return errno;
	input->at = to;
	return read_full(fd, to, size, NO_DEADLINE, &input->len);
}

int input_read_file(int dir, const char *path, int flags, struct input *input, struct stat *st)
{
	/* O_NONBLOCK: a FIFO of that name must not block the container's start. */
	int fd = openat(dir, path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK | flags);
	int error;

	*input = (struct input){.at = ""};
	if (fd < 0)
		return errno;
	error = read_open_file(fd, input, st);
	close(fd);
	return error;
}
