/*
 * Implements interpreter.h. Two steps have a fallback for older kernels: a pipe where memfd_create is missing, and
 * /proc/self/fd where close_range is.
 */
#include "interpreter.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef SYS_close_range
#define SYS_close_range 436
#endif

#define START_WORDS_MAX 11

/*
 * Takes the hook's modules from one file (packaging/bytecode). The file is one version of the hook, also while a package
 * manager replaces the sources. It is unusable when it has another magic number, is damaged, or could have been written
 * by anyone but root. The interpreter has loaded all four imported modules already.
 */
#define LOAD_BYTE_CODE \
	"    import _frozen_importlib_external, _imp, marshal, posix\n" \
	"    fd = posix.open(file, posix.O_RDONLY | posix.O_CLOEXEC | posix.O_NOFOLLOW)\n" \
	"    stat = posix.fstat(fd)\n" \
	"    data = memoryview(posix.read(fd, stat.st_size))\n" \
	"    posix.close(fd)\n" \
	"    if (stat.st_uid != 0 or stat.st_mode & 0o170022 != 0o100000\n" \
	"            or data[:4] != _frozen_importlib_external.MAGIC_NUMBER\n" \
	"            or data[4:12] != _imp.source_hash(1, data[12:])):\n" \
	"        raise ImportError('another owner, mode or content')\n" \
	"    finder, table = marshal.loads(data[12:])\n" \
	"    exec(finder, {'table': table})\n"

/* Prints one line instead of a traceback for a broken installation. The hook itself prints its own errors. */
#define IMPORT_ENTRY \
	"    from vgpu.hook.main import entry\n" \
	"except KeyboardInterrupt:\n" \
	"    sys.exit('vgpu-hook: import: expected to finish, found the signal SIGINT; start the container again')\n" \
	"except BaseException as error:\n" \
	"    found = f'{type(error).__name__}: {ascii(str(error))}'\n"

#ifdef VGPU_RELEASE
static const char code[] =
	"import gc, sys\n"
	"gc.disable()\n" /* a collection takes 1 ms and is not worth it for some fifty modules and one allocation */
	"root = sys.argv.pop(1)\n"
	"file = root + '" VGPU_BYTE_CODE "'\n"
	"try:\n"
	"    if sys.prefix != root + '/usr':\n"
	"        raise ImportError('the standard library of ' + sys.prefix)\n" LOAD_BYTE_CODE IMPORT_ENTRY
	"    sys.exit(f'vgpu-hook: import of vgpu.hook.main from {file}: expected a complete release, found {found}; '\n"
	"             '" RELEASE_AGAIN "')\n"
	"entry(sys.argv[1:])\n";
#else
/* Without the file the hook is imported from the sources. */
#ifdef VGPU_BYTE_CODE
#define TRY_BYTE_CODE \
	"file = '" VGPU_BYTE_CODE "'\n" \
	"try:\n" LOAD_BYTE_CODE "except Exception:\n" \
	"    pass\n"
#else
#define TRY_BYTE_CODE
#endif

static const char code[] =
	"import gc, sys\n"
	"gc.disable()\n" /* as above */
	"sys.path[:0] = '" VGPU_PYTHON_PATH "'.split(':')\n" TRY_BYTE_CODE "try:\n" IMPORT_ENTRY
	"    sys.exit('vgpu-hook: import of vgpu.hook.main from " VGPU_PYTHON_PATH
	": expected a complete installation, '\n"
	"             f'found {found}; install vgpu again, and python3 with its whole standard library')\n"
	"entry(sys.argv[1:])\n";
#endif

/* A release's C library would read the host's files for C.UTF-8, and modules for conversions. In C, which needs none,
 * Python uses UTF-8, too. */
#ifdef VGPU_RELEASE
#define LOCALE "LC_ALL=C"
#else
#define LOCALE "LC_ALL=C.UTF-8"
#endif
static char *const environment[] = {"PATH=/usr/sbin:/usr/bin:/sbin:/bin", LOCALE, NULL};

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

/* The words up to the hook's own, of which there are `*count`. Returns NULL, or the step that failed. */
static const char *start_words(char **words, size_t *count)
{
#ifdef VGPU_RELEASE
	const char *step = release_python(words);
	char *options[] = {"-I", "-S", "-c", (char *)code, release_root()};
	size_t n = RELEASE_PYTHON_WORDS;
#else
	const char *step = NULL;
	char *options[] = {VGPU_PYTHON, "-I", "-S", "-c", (char *)code};
	size_t n = 0;
#endif

	for (size_t i = 0; i < sizeof options / sizeof *options; i++)
		words[n++] = options[i];
	*count = n;
	return step;
}

const char *interpreter_exec(const struct input *state, char *const *args)
{
	static char exec[PATH_MAX + sizeof "exec "];
	char *words[START_WORDS_MAX + INTERPRETER_ARGS_MAX + 1];
	size_t n;
	const char *step = start_words(words, &n);

	if (step)
		return step;
	for (size_t i = 0; i < INTERPRETER_ARGS_MAX && args[i]; i++)
		words[n++] = args[i];
	words[n] = NULL;
	if (state_to_stdin(state) < 0)
		return "pass the state on";
	if (chdir("/") < 0)
		return "chdir /";
	close_above_stderr();
	umask(022);
	default_signals();
	execve(words[0], words, environment);
#ifdef VGPU_PYTHON_INSTEAD
	/* A package's link is missing until postinst has run, and leads nowhere when an upgrade has removed its Python. */
	if (errno == ENOENT) {
		words[0] = VGPU_PYTHON_INSTEAD;
		execve(words[0], words, environment);
	}
#endif
	snprintf(exec, sizeof exec, "exec %s", words[0]);
	return exec;
}
