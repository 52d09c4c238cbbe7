/*
 * Very many of something of CUDA, in one container. Prints "ready" when it has them, and keeps them until it is killed.
 *
 *   contexts COUNT    so many contexts in this process
 *   processes COUNT   so many processes with a context each
 */
#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

static void *driver;

static int call(const char *name, void *out, unsigned int flags, int device)
{
	int (*function)(void *, unsigned int, int);

	*(void **)&function = dlsym(driver, name);
	int status = function ? function(out, flags, device) : -1;
	if (status != 0) {
		fprintf(stderr, "crowd: %s: %d\n", name, status);
		exit(1);
	}
	return status;
}

static void contexts(long count)
{
	int (*init)(unsigned int);
	void *context;

	driver = dlopen("libcuda.so.1", RTLD_NOW);
	*(void **)&init = driver ? dlsym(driver, "cuInit") : NULL;
	if (!init || init(0) != 0)
		exit(1);
	while (count-- > 0)
		call("cuCtxCreate_v2", &context, 0, 0);
}

static void processes(long count)
{
	int ends[2];
	char byte = 0;

	if (pipe(ends) != 0)
		exit(1);
	for (long i = 0; i < count; i++)
		if (fork() == 0) {
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			contexts(1);
			if (write(ends[1], &byte, 1) == 1)
				for (;;)
					pause();
			exit(1);
		}
	close(ends[1]);
	while (count-- > 0)
		if (read(ends[0], &byte, 1) != 1)
			exit(1);
}

int main(int argc, char **argv)
{
	if (argc != 3)
		return 2;
	(strcmp(argv[1], "contexts") == 0 ? contexts : processes)(strtol(argv[2], NULL, 10));
	puts("ready");
	fflush(stdout);
	for (;;)
		pause();
}
