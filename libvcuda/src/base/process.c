/*
 * See base/process.h. This file reads the container's /proc. Without a usable /proc, start times are 0, and only the
 * pid identifies a process.
 */
#include "base/process.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/auxv.h>
#include <unistd.h>

#include "vgpu_usage.h"

#define PID_MASK (((uint64_t)1 << VGPU_USAGE_PID_BITS) - 1)
#define START_MASK ((VGPU_USAGE_REAPING >> VGPU_USAGE_PID_BITS) - 1)

struct stat_line {
	uint64_t pid;
	char state;
	uint64_t threads;
	uint64_t start;
};

static uint64_t number(const char *text)
{
	uint64_t value = 0;

	while (*text >= '0' && *text <= '9')
		value = value * 10 + (uint64_t)(*text++ - '0');
	return value;
}

/* Returns field `wanted`, counted as in proc(5), of a text that begins with field 3. NULL: there are fewer fields. */
static const char *field(const char *text, int wanted)
{
	for (int at = 3; text && at < wanted; at++) {
		text = strchr(text, ' ');
		text = text ? text + 1 : NULL;
	}
	return text;
}

static bool parse_stat(const char *text, struct stat_line *line)
{
	const char *rest = strrchr(text, ')'); /* the name before it may contain anything, even blanks and brackets */

	if (!rest || rest[1] != ' ' || !field(rest + 2, 22))
		return false;
	line->pid = number(text);
	line->state = rest[2];
	line->threads = number(field(rest + 2, 20));
	line->start = number(field(rest + 2, 22)) & START_MASK;
	return true;
}

static bool read_stat(const char *path, struct stat_line *line)
{
	char text[1024];
	int fd = open(path, O_RDONLY | O_CLOEXEC);

	if (fd < 0)
		return false;
	ssize_t length = read(fd, text, sizeof(text) - 1);
	close(fd);
	if (length <= 0)
		return false;
	text[length] = '\0';
	return parse_stat(text, line);
}

void process_path(char path[PROCESS_PATH], const char *name)
{
	static atomic_bool has_thread_self;

	if (!atomic_load(&has_thread_self) && access("/proc/thread-self", F_OK) == 0) /* Linux 3.17 */
		atomic_store(&has_thread_self, true);
	snprintf(path, PROCESS_PATH, "/proc/%s/%s", atomic_load(&has_thread_self) ? "thread-self" : "self", name);
}

/* Returns the inode in a link text such as `pid:[4026531836]`. 0: the kernel has no such namespace. */
static uint64_t namespace_inode(const char *name)
{
	char text[64], path[PROCESS_PATH];

	process_path(path, name);
	ssize_t length = readlink(path, text, sizeof(text) - 1);
	if (length <= 0)
		return 0;
	text[length] = '\0';
	const char *bracket = strchr(text, '[');
	return bracket ? number(bracket + 1) & UINT32_MAX : 0;
}

static uint64_t image_nonce(void)
{
	const void *random = (const void *)getauxval(AT_RANDOM); /* 16 bytes, new at every exec */
	uint64_t nonce = 0;

	if (random)
		memcpy(&nonce, random, sizeof(nonce));
	return nonce | VGPU_USAGE_UNLOCKED | 2; /* not 0 without that bit either */
}

void process_identify(struct process_identity *self)
{
	struct stat_line line;
	uint64_t pid = (uint64_t)getpid();
	uint64_t start = 0;

	if (read_stat("/proc/self/stat", &line) && line.pid == pid) /* otherwise /proc is of another pid namespace */
		start = line.start;
	self->owner = start << VGPU_USAGE_PID_BITS | (pid & PID_MASK);
	self->namespaces = namespace_inode("ns/time") << 32 | namespace_inode("ns/pid");
	if (!self->namespaces)
		self->namespaces = UINT64_MAX;
	self->image = image_nonce();
}

/*
 * A zombie has closed its files, so the driver has taken back its memory. Many containers have no init that would reap
 * it. A leader that exited while its threads run is a zombie in /proc, too, but one with more than one thread.
 */
static bool ended(const struct stat_line *line)
{
	return (line->state == 'Z' || line->state == 'X') && line->threads <= 1;
}

bool process_is_dead(const struct process_identity *self, uint64_t owner, enum look look)
{
	uint64_t start = owner >> VGPU_USAGE_PID_BITS & START_MASK;
	uint64_t own_start = self->owner >> VGPU_USAGE_PID_BITS & START_MASK;
	struct stat_line line;
	char path[40];

	pid_t pid = (pid_t)(owner & PID_MASK);
	if (kill(pid, 0) < 0 && errno == ESRCH)
		return true;
	if (look == PASSING)
		return false;
	snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
	if (!own_start || !read_stat(path, &line)) /* /proc is of another namespace, or hides the process */
		return false;
	return (start && line.start != start) || ended(&line);
}

bool process_is_judged_by_pid(const struct process_identity *self, uint64_t namespaces)
{
	return !namespaces || namespaces == self->namespaces;
}
