/*
 * Holds memory of the first card in a process of some kind, and prints its own pid when it does.
 *
 *   memory_holder MIB plain: the process itself. It ends at SIGTERM, without freeing.
 *   memory_holder MIB leader: a process whose first thread ends, while another lives on.
 *   memory_holder MIB exec: executes `sleep 600` at SIGTERM.
 *   memory_holder MIB pid: a child in a PID namespace of its own. The parent ends with it.
 *   memory_holder MIB time: a child in a time namespace whose boot was an hour and 7 ms earlier.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef CLONE_NEWTIME
#define CLONE_NEWTIME 0x00000080
#endif

static void must(int good, const char *what)
{
	if (good)
		return;
	perror(what);
	exit(1);
}

static void hold(size_t mib)
{
	void *cuda = dlopen("libcuda.so.1", RTLD_NOW), *context = NULL;
	uint64_t pointer = 0;

	must(cuda != NULL, "libcuda.so.1");
	must(((int (*)(unsigned int))dlsym(cuda, "cuInit"))(0) == 0, "cuInit");
	must(((int (*)(void **, int))dlsym(cuda, "cuDevicePrimaryCtxRetain"))(&context, 0) == 0, "a context");
	must(((int (*)(void *))dlsym(cuda, "cuCtxSetCurrent"))(context) == 0, "the context");
	must(((int (*)(uint64_t *, size_t))dlsym(cuda, "cuMemAlloc_v2"))(&pointer, mib << 20) == 0, "memory");
	printf("%d\n", (int)getpid());
	fflush(stdout);
}

static void await_term(void)
{
	sigset_t set;
	int number;

	sigemptyset(&set);
	sigaddset(&set, SIGTERM);
	sigwait(&set, &number);
}

static void *end_at_term(void *unused)
{
	(void)unused;
	await_term();
	exit(0);
}

/* Goes on as the only child, in new namespaces. */
static void enter(int namespaces)
{
	must(unshare(namespaces) == 0, "unshare");
	if (namespaces & CLONE_NEWTIME) {
		FILE *offsets = fopen("/proc/self/timens_offsets", "w");
		must(offsets && fputs("boottime 3600 7000000\n", offsets) >= 0 && fclose(offsets) == 0,
		     "timens_offsets");
	}
	pid_t child = fork();
	must(child >= 0, "fork");
	if (child == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		return;
	}
	waitpid(child, NULL, 0);
	exit(0);
}

int main(int count, char **arguments)
{
	must(count == 3, "memory_holder MIB KIND");
	const char *kind = arguments[2];
	sigset_t set;
	pthread_t thread;

	sigemptyset(&set);
	sigaddset(&set, SIGTERM);
	pthread_sigmask(SIG_BLOCK, &set, NULL);
	if (strcmp(kind, "pid") == 0)
		enter(CLONE_NEWPID);
	if (strcmp(kind, "time") == 0)
		enter(CLONE_NEWTIME);
	hold(strtoul(arguments[1], NULL, 10));
	if (strcmp(kind, "leader") == 0) {
		must(pthread_create(&thread, NULL, end_at_term, NULL) == 0, "a thread");
		syscall(SYS_exit, 0); /* pthread_exit needs libgcc_s, which the container lacks */
	}
	await_term();
	if (strcmp(kind, "exec") == 0)
		execlp("sleep", "sleep", "600", (char *)NULL);
	return 0;
}
