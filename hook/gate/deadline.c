/*
 * Implements deadline.h. The child gets pipes for its output: a child that no signal ends would keep the runtime's own
 * open, and runc waits for their end.
 */
#include "deadline.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "input.h"
#include "report.h"

#define EXIT_OVERDUE 1
#define PATIENCE INPUT_TEXT(VGPU_HOOK_SECONDS)
#define OVERDUE \
	"a start: expected some progress within " PATIENCE " s, found none: " \
	"a file system of the container does not answer; look for FUSE mounts and fanotify in its volumes"
#define LOOK_EACH 1000 /* milliseconds */

static pid_t child;

static void pass_signal(int number)
{
	kill(child, number);
}

static const char *become_child(pid_t parent, int out, int err)
{
	if (prctl(PR_SET_PDEATHSIG, SIGKILL) < 0)
		return "die with the parent";
	if (getppid() != parent)
		_exit(EXIT_OVERDUE);
	if (dup2(out, STDOUT_FILENO) < 0 || dup2(err, STDERR_FILENO) < 0)
		return "pass the output on";
	return NULL;
}

/* Passes on what the pipe has. At its end the pipe is closed, and poll(2) looks at it no more. */
static void pass_output(struct pollfd *from, int to)
{
	char data[4096];
	ssize_t n = from->revents ? read(from->fd, data, sizeof data) : -1;

	if (n > 0) {
		for (ssize_t done = 0, sent; done < n; done += sent)
			if ((sent = write(to, data + done, (size_t)(n - done))) <= 0)
				return; /* nobody reads it */
	} else if (from->revents && (n == 0 || errno != EINTR)) {
		close(from->fd);
		from->fd = -1;
	}
}

/* How often the child has slept. While it waits in a line, for a lock or for room, it looks again all the time. */
static long count_sleeps(void)
{
	char path[64], text[4096];
	const char *found;

	snprintf(path, sizeof path, "/proc/%d/status", (int)child);
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t n = fd < 0 ? 0 : read(fd, text, sizeof text - 1);
	if (fd >= 0)
		close(fd);
	text[n < 0 ? 0 : n] = '\0';
	found = strstr(text, "\nvoluntary_ctxt_switches:");
	return found ? atol(found + sizeof "\nvoluntary_ctxt_switches:" - 1) : 0;
}

/* False: the child has not made any progress for too long. */
static bool pass_all(struct pollfd *outputs)
{
	long moved = input_milliseconds(), sleeps = 0;

	while (outputs[0].fd >= 0 || outputs[1].fd >= 0) {
		if (poll(outputs, 2, LOOK_EACH) <= 0) {
			long now = count_sleeps();
			if (now != sleeps)
				moved = input_milliseconds();
			else if (input_milliseconds() - moved > VGPU_HOOK_SECONDS * 1000L)
				return false;
			sleeps = now;
			continue;
		}
		pass_output(&outputs[0], STDOUT_FILENO);
		pass_output(&outputs[1], STDERR_FILENO);
	}
	return true;
}

static _Noreturn void stand_by(const char *program, int out, int err)
{
	struct pollfd outputs[] = {{.fd = out, .events = POLLIN}, {.fd = err, .events = POLLIN}};
	int status;

	if (!pass_all(outputs)) {
		kill(child, SIGKILL);
		report(program, OVERDUE);
		exit(EXIT_OVERDUE);
	}
	while (waitpid(child, &status, 0) < 0)
		if (errno != EINTR)
			exit(EXIT_OVERDUE);
	if (WIFEXITED(status))
		exit(WEXITSTATUS(status));
	report(program, "the hook's process: expected to finish, found its end by signal %d; start the container again",
	       WTERMSIG(status));
	exit(EXIT_OVERDUE);
}

const char *deadline_fork(const char *program)
{
	struct sigaction pass = {.sa_handler = pass_signal};
	int out[2], err[2];
	pid_t parent = getpid();

	if (pipe2(out, O_CLOEXEC) < 0 || pipe2(err, O_CLOEXEC) < 0)
		return "pipe";
	signal(SIGCHLD, SIG_DFL); /* a caller that ignores it would leave waitpid(2) nothing */
	child = fork();
	if (child < 0)
		return "fork";
	if (child == 0)
		return become_child(parent, out[1], err[1]);
	close(out[1]);
	close(err[1]);
	sigaction(SIGINT, &pass, NULL);
	sigaction(SIGTERM, &pass, NULL);
	signal(SIGPIPE, SIG_IGN);
	stand_by(program, out[0], err[0]);
}
