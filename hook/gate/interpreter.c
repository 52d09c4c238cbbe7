/*
 * Implements interpreter.h. Two steps have a fallback for older kernels: a pipe where memfd_create is missing, and
 * /proc/self/fd where close_range is.
 */
#include "interpreter.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef SYS_close_range
#define SYS_close_range 436
#endif

/*
 * Takes the hook's modules from one file (packaging/bytecode). The file is one version of the hook, also while a package
 * manager replaces the sources. The hook falls back to the sources when the file has another magic number, is damaged,
 * or could have been written by anyone but root. The interpreter has loaded all four imported modules already.
 */
#ifdef VGPU_BYTE_CODE
#define LOAD_BYTE_CODE \
	"import _frozen_importlib_external, _imp, marshal, posix\n" \
	"try:\n" \
	"    fd = posix.open('" VGPU_BYTE_CODE "', posix.O_RDONLY | posix.O_CLOEXEC | posix.O_NOFOLLOW)\n" \
	"    stat = posix.fstat(fd)\n" \
	"    data = memoryview(posix.read(fd, stat.st_size))\n" \
	"    posix.close(fd)\n" \
	"    if (stat.st_uid == 0 and stat.st_mode & 0o170022 == 0o100000\n" \
	"            and data[:4] == _frozen_importlib_external.MAGIC_NUMBER\n" \
	"            and data[4:12] == _imp.source_hash(1, data[12:])):\n" \
	"        finder, table = marshal.loads(data[12:])\n" \
	"        exec(finder, {'table': table})\n" \
	"except Exception:\n" \
	"    pass\n"
#else
#define LOAD_BYTE_CODE
#endif

/* Prints one line instead of a traceback for a broken installation. The hook itself prints its own errors. */
static const char code[] =
	"import gc, sys\n"
	"gc.disable()\n" /* a collection takes 1 ms and is not worth it for some sixty modules and one allocation */
	"sys.path[:0] = '" VGPU_PYTHON_PATH "'.split(':')\n" LOAD_BYTE_CODE "try:\n"
	"    from vgpu.hook.main import entry\n"
	"except KeyboardInterrupt:\n"
	"    sys.exit('vgpu-hook: import: expected to finish, found the signal SIGINT; start the container again')\n"
	"except BaseException as error:\n"
	"    found = f'{type(error).__name__}: {ascii(str(error))}'\n"
	"    sys.exit('vgpu-hook: import of vgpu.hook.main from " VGPU_PYTHON_PATH
	": expected a complete installation, '\n"
	"             f'found {found}; install vgpu again, and python3 with its whole standard library')\n"
	"entry(sys.argv[1:])\n";

static char *const environment[] = {"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C.UTF-8", NULL};

void interpreter_standard_fds(void)
{
	for (int fd = 0; fd <= 2; fd++)
		if (fcntl(fd, F_GETFD) < 0)
			open("/dev/null", O_RDWR);
}

static int write_state(int fd, const struct input *state)
{
	size_t done = 0;

	while (done < state->len) {
		ssize_t n = write(fd, state->at + done, state->len - done);
		if (n < 0 && errno != EINTR)
			return -1;
		if (n > 0)
			done += (size_t)n;
	}
	return 0;
}

/*
 * Used where memfd_create fails (before Linux 3.17, or by seccomp), or where the runtime's limit of a file's size is less
 * than the state: a pipe large enough for the whole state.
 */
static int state_pipe(const struct input *state)
{
	int fds[2];

	if (pipe2(fds, O_CLOEXEC | O_NONBLOCK) < 0)
		return -1;
	if (state->len > 65536)
		fcntl(fds[1], F_SETPIPE_SZ, (int)STATE_MAX);
	if (write_state(fds[1], state) < 0 || fcntl(fds[0], F_SETFL, 0) < 0)
		return -1;
	close(fds[1]);
	return fds[0];
}

static int state_memfd(const struct input *state)
{
	int fd = memfd_create("vgpu-hook-state", MFD_CLOEXEC);

	if (fd < 0)
		return -1;
	if (write_state(fd, state) == 0 && lseek(fd, 0, SEEK_SET) == 0)
		return fd;
	close(fd);
	return -1;
}

static int state_to_stdin(const struct input *state)
{
	int fd = state_memfd(state);

	if (fd < 0)
		fd = state_pipe(state);
	return fd < 0 ? -1 : dup2(fd, STDIN_FILENO);
}

static void close_listed(DIR *dir)
{
	struct dirent *entry;

	while ((entry = readdir(dir))) {
		int fd = atoi(entry->d_name);
		if (fd > 2 && fd != dirfd(dir))
			close(fd);
	}
}

/* Before Linux 5.9, closes what /proc lists or, without /proc, the descriptors that a runtime may have left open. */
static void close_above_stderr(void)
{
	DIR *dir;

	if (syscall(SYS_close_range, 3U, ~0U, 0U) == 0)
		return;
	dir = opendir("/proc/self/fd");
	if (!dir) {
		for (int fd = 3; fd < 4096; fd++)
			close(fd);
		return;
	}
	close_listed(dir);
	closedir(dir);
}

/* Uses the system call: a caller may also have ignored signals from 32 on, which the C library reserves for itself. */
static void default_signals(void)
{
	static const unsigned long default_action[4]; /* the kernel's struct sigaction: SIG_DFL, no flags, empty mask */
	sigset_t none;

	for (int signal_number = 1; signal_number <= 64; signal_number++)
		syscall(SYS_rt_sigaction, signal_number, default_action, NULL, sizeof(unsigned long));
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
}

const char *interpreter_exec(const struct input *state, char *const *args)
{
	char *argv[5 + INTERPRETER_ARGS_MAX + 1] = {VGPU_PYTHON, "-I", "-S", "-c", (char *)code};

	for (size_t i = 0; i < INTERPRETER_ARGS_MAX && args[i]; i++)
		argv[5 + i] = args[i];
	if (state_to_stdin(state) < 0)
		return "pass the state on";
	if (chdir("/") < 0)
		return "chdir /";
	close_above_stderr();
	umask(022);
	default_signals();
	execve(VGPU_PYTHON, argv, environment);
	return "exec " VGPU_PYTHON;
}
