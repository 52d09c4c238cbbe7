/*
 * The attacks that the suite's containers run, one verb each. Linked statically, so that it runs in any root file
 * system. Each verb prints "ready" when its attack has begun, and goes on until it is killed.
 *
 *   cell ROOT [SOURCE:TARGET ...]  a mount namespace like that of a container before pivot_root
 *   flip A B                       exchanges two names as fast as it can
 *   lease read|write FILE ...      takes leases on the files, and takes them again when the host breaks them
 *   lock FILE                      locks the whole range of the file
 *   locks COUNT FILE ...           locks so many bytes of each file, none of which is a card's
 *   waiters COUNT FILE ...         so many threads wait on the first word of each file, woken by whoever wakes any
 *   threads COUNT                  so many threads that sleep
 *   processes COUNT                so many processes that sleep
 *   mappings COUNT                 so many mappings in one process
 *   watches COUNT PATH ...         so many inotify instances that watch each path
 *   fanotify inode|mount|filesystem PATH  is asked for permission when anybody opens a file there, and never answers
 *   fuse lookup|open|read DIRECTORY       covers the directory with a file system that answers up to this request
 *   remount FILE ...               makes every mount writable and writes into each file; then it ends
 *   stop PID ...                   sends SIGSTOP to each process again and again
 *   trace PID ...                  attaches to each process as a debugger
 *   descriptors                    opens ../../../../.. below each descriptor that it has inherited; then it ends
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/fuse.h>
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/fanotify.h>
#include <sys/inotify.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static void ready(void)
{
	puts("ready");
	fflush(stdout);
}

static void rest(long us)
{
	struct timespec time = {.tv_nsec = us * 1000};

	nanosleep(&time, NULL);
}

static _Noreturn void wait_for_ever(void)
{
	ready();
	for (;;)
		pause();
}

static _Noreturn void fail(const char *what)
{
	perror(what);
	exit(1);
}

static void bind_here(const char *source, const char *target)
{
	if (mount(source, target, NULL, MS_BIND, NULL) != 0)
		fail(target);
}

static void cell(char **words)
{
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (unshare(CLONE_NEWNS) != 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0)
		fail("unshare");
	bind_here(words[0], words[0]);
	for (char **pair = words + 1; *pair; pair++) {
		char *target = strchr(*pair, ':');

		*target++ = '\0';
		bind_here(*pair, target);
	}
	wait_for_ever();
}

static void flip(char **words)
{
	ready();
	for (;;)
		syscall(SYS_renameat2, AT_FDCWD, words[0], AT_FDCWD, words[1], RENAME_EXCHANGE);
}

static void lease(char **words)
{
	int type = strcmp(words[0], "write") == 0 ? F_WRLCK : F_RDLCK, taken = 0, held[256];
	int count = 0;

	signal(SIGIO, SIG_IGN);
	for (char **name = words + 1; *name && count < 256; name++, count++)
		held[count] = open(*name, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
	for (int i = 0; i < count; i++)
		taken += held[i] >= 0 && fcntl(held[i], F_SETLEASE, type) == 0;
	printf("taken %d of %d\n", taken, count);
	ready();
	for (;; rest(200))
		for (int i = 0; i < count; i++)
			if (held[i] >= 0 && fcntl(held[i], F_GETLEASE) == F_UNLCK)
				fcntl(held[i], F_SETLEASE, type);
}

static void lock(char **words)
{
	struct flock all = {.l_type = F_RDLCK, .l_whence = SEEK_SET};
	int file = open(words[0], O_RDONLY | O_CLOEXEC);

	if (file < 0 || fcntl(file, F_OFD_SETLK, &all) != 0)
		fail(words[0]);
	wait_for_ever();
}

static void locks(char **words)
{
	long count = strtol(*words, NULL, 10);

	while (*++words) {
		int file = open(*words, O_RDONLY);
		struct flock one = {.l_type = F_RDLCK, .l_start = INT64_MAX - 2, .l_len = 1};
		for (long i = 0; i < count; i++, one.l_start -= 2) /* neighbouring bytes would become one lock */
			if (fcntl(file, F_OFD_SETLK, &one) != 0)
				fail(*words);
	}
	wait_for_ever();
}

static void *wait_on(void *word)
{
	for (;;)
		syscall(SYS_futex, word, FUTEX_WAIT_BITSET, *(uint32_t *)word, NULL, NULL, FUTEX_BITSET_MATCH_ANY);
	return NULL;
}

static void *sleep_for_ever(void *unused)
{
	for (;;)
		pause();
	return unused;
}

static void start_threads(const char *count, void *(*run)(void *), void *argument)
{
	pthread_attr_t small;
	pthread_t id;

	pthread_attr_init(&small);
	pthread_attr_setstacksize(&small, 1 << 14);
	for (long i = strtol(count, NULL, 10); i > 0; i--)
		if (pthread_create(&id, &small, run, argument) != 0)
			fail("pthread_create");
}

static void waiters(char **words)
{
	for (char **file = words + 1; *file; file++) {
		int opened = open(*file, O_RDONLY);
		void *word = mmap(NULL, 4096, PROT_READ, MAP_SHARED, opened, 0);
		if (word == MAP_FAILED)
			fail(*file);
		start_threads(*words, wait_on, word);
	}
	wait_for_ever();
}

static void threads(char **words)
{
	start_threads(*words, sleep_for_ever, NULL);
	wait_for_ever();
}

static void processes(char **words)
{
	for (long i = strtol(*words, NULL, 10); i > 0; i--) {
		pid_t child = fork();
		if (child < 0)
			fail("fork");
		if (child == 0) {
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			sleep_for_ever(NULL);
		}
	}
	wait_for_ever();
}

static void mappings(char **words)
{
	for (long i = strtol(*words, NULL, 10); i > 0; i--) /* neighbours of one kind would become one */
		if (mmap(NULL, 4096, i % 2 ? PROT_READ : PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == MAP_FAILED)
			fail("mmap");
	wait_for_ever();
}

static void watches(char **words)
{
	for (long i = strtol(*words, NULL, 10); i > 0; i--) {
		int instance = inotify_init();
		for (char **path = words + 1; *path; path++)
			if (instance < 0 || inotify_add_watch(instance, *path, IN_ALL_EVENTS) < 0)
				fail("inotify");
	}
	wait_for_ever();
}

static void fanotify(char **words)
{
	unsigned int type = strcmp(words[0], "inode") == 0   ? FAN_MARK_INODE
			    : strcmp(words[0], "mount") == 0 ? FAN_MARK_MOUNT
							     : FAN_MARK_FILESYSTEM;
	uint64_t events = FAN_OPEN_PERM | FAN_ACCESS_PERM | FAN_EVENT_ON_CHILD | FAN_ONDIR;
	int group = fanotify_init(FAN_CLASS_CONTENT | FAN_CLOEXEC, O_RDONLY);

	if (group < 0)
		fail("fanotify_init");
	if (fanotify_mark(group, FAN_MARK_ADD | type, events, AT_FDCWD, words[1]) != 0 &&
	    fanotify_mark(group, FAN_MARK_ADD | FAN_MARK_MOUNT, events, AT_FDCWD, words[1]) != 0)
		fail("fanotify_mark");
	wait_for_ever();
}

static void answer(int device, uint64_t request, const void *data, size_t size, int error)
{
	char message[sizeof(struct fuse_out_header) + 256];
	struct fuse_out_header header = {.len = sizeof(header) + size, .error = error, .unique = request};

	memcpy(message, &header, sizeof(header));
	memcpy(message + sizeof(header), data, size);
	if (write(device, message, header.len) < 0 && errno != ENOENT)
		fail("answer");
}

/* Answers one request. Those of the kind at which the server stops, and later ones, have no answer. */
static void serve(int device, const struct fuse_in_header *in, int stops)
{
	int is_root = in->nodeid == FUSE_ROOT_ID;
	struct fuse_attr root = {.ino = 1, .mode = S_IFDIR | 0755, .nlink = 1};
	struct fuse_attr file = {.ino = 2, .size = 1 << 20, .mode = S_IFREG | 0666, .nlink = 1};
	struct fuse_init_out init = {.major = FUSE_KERNEL_VERSION, .max_write = 1 << 16};
	struct fuse_entry_out entry = {.nodeid = 2, .attr = file};
	struct fuse_attr_out attributes = {.attr = is_root ? root : file};
	struct fuse_open_out open = {.fh = 1};

	if (in->opcode == FUSE_INIT) {
		init.minor = ((const struct fuse_init_in *)(in + 1))->minor;
		answer(device, in->unique, &init, sizeof(init), 0);
	} else if (in->opcode == FUSE_LOOKUP && stops > FUSE_LOOKUP) {
		answer(device, in->unique, &entry, sizeof(entry), 0);
	} else if (in->opcode == FUSE_GETATTR && (is_root || stops > FUSE_LOOKUP)) {
		answer(device, in->unique, &attributes, sizeof(attributes), 0);
	} else if ((in->opcode == FUSE_OPEN || in->opcode == FUSE_OPENDIR) && stops > FUSE_OPEN) {
		answer(device, in->unique, &open, sizeof(open), 0);
	} else if (in->opcode > FUSE_READ && in->opcode != FUSE_OPENDIR && in->opcode != FUSE_BATCH_FORGET) {
		answer(device, in->unique, NULL, 0, -ENOSYS);
	}
}

/* The file system has one file, for any name. */
static void fuse(char **words)
{
	static char buffer[FUSE_MIN_READ_BUFFER + (1 << 17)];
	int stops = strcmp(words[0], "lookup") == 0 ? FUSE_LOOKUP
		    : strcmp(words[0], "open") == 0 ? FUSE_OPEN
						    : FUSE_READ;
	char options[128];
	int device = open("/dev/fuse", O_RDWR);

	if (device < 0 && (mknod("/tmp/fuse", S_IFCHR | 0600, makedev(10, 229)) == 0 || errno == EEXIST))
		device = open("/tmp/fuse", O_RDWR);
	if (device < 0)
		fail("/dev/fuse");
	snprintf(options, sizeof(options), "fd=%d,rootmode=40000,user_id=0,group_id=0,allow_other", device);
	if (mount("fuse", words[1], "fuse", 0, options) != 0)
		fail("mount");
	ready();
	for (;;) {
		ssize_t size = read(device, buffer, sizeof(buffer));

		if (size < 0 && errno != EINTR && errno != ENOENT)
			fail("/dev/fuse");
		if (size >= (ssize_t)sizeof(struct fuse_in_header))
			serve(device, (const struct fuse_in_header *)buffer, stops);
	}
}

static void remount(char **words)
{
	char line[4096], target[4096];
	FILE *mounts = fopen("/proc/self/mountinfo", "r");
	int remounted = 0;

	while (mounts && fgets(line, sizeof(line), mounts))
		if (sscanf(line, "%*s %*s %*s %*s %4095s", target) == 1) {
			remounted += mount(NULL, target, NULL, MS_REMOUNT | MS_BIND, NULL) == 0;
			remounted += mount(NULL, target, NULL, MS_REMOUNT, NULL) == 0;
		}
	printf("remounted %d\n", remounted);
	for (; *words; words++) {
		int file = open(*words, O_WRONLY | O_NONBLOCK);
		int wrote = file >= 0 && pwrite(file, "hostile", 7, 0) == 7;

		printf("%s %s\n", *words, wrote ? "written" : strerror(errno));
	}
	ready();
}

static void stop(char **words)
{
	ready();
	for (;; rest(1000))
		for (char **pid = words; *pid; pid++)
			kill(atoi(*pid), SIGSTOP);
}

static void trace(char **words)
{
	for (; *words; words++) {
		int pid = atoi(*words), status;
		long result = ptrace(PTRACE_ATTACH, pid, NULL, NULL);

		printf("%d %s\n", pid, result == 0 ? "attached" : strerror(errno));
		if (result == 0) {
			waitpid(pid, &status, __WALL);
			ptrace(PTRACE_DETACH, pid, NULL, NULL);
		}
	}
	ready();
}

static void descriptors(char **words)
{
	char link[64], found[4096];

	(void)words;
	for (int file = 3; file < 1024; file++) {
		ssize_t size;

		snprintf(link, sizeof(link), "/proc/self/fd/%d", file);
		size = readlink(link, found, sizeof(found) - 1);
		if (size < 0)
			continue;
		found[size] = '\0';
		printf("%d %s\n", file, found);
	}
	ready();
}

static const struct {
	const char *name;
	int words;
	void (*run)(char **words);
} verbs[] = {
	{"cell", 1, cell},         {"flip", 2, flip},
	{"lease", 2, lease},       {"lock", 1, lock},
	{"fanotify", 2, fanotify}, {"fuse", 2, fuse},
	{"remount", 0, remount},   {"stop", 1, stop},
	{"trace", 1, trace},       {"descriptors", 0, descriptors},
	{"locks", 2, locks},       {"waiters", 2, waiters},
	{"threads", 1, threads},   {"processes", 1, processes},
	{"mappings", 1, mappings}, {"watches", 2, watches},
};

int main(int argc, char **argv)
{
	for (size_t i = 0; i < sizeof(verbs) / sizeof(*verbs); i++)
		if (argc > 1 && strcmp(argv[1], verbs[i].name) == 0 && argc - 2 >= verbs[i].words) {
			verbs[i].run(argv + 2);
			return 0;
		}
	fputs("usage: tenant VERB WORD ...\n", stderr);
	return 2;
}
