/*
 * Measures calls through libvcuda to null_driver.c. `calls` prints the nanoseconds per call of each kind, the lowest of
 * several rounds, as one `name figure` a line, and the cost of the clock itself; of an import, the lowest of some calls
 * while none, and while OTHERS imports are held. `starts N` prints the milliseconds
 * that N copies of this program take when started at once; each does `start`: it makes a first context and allocates
 * memory.
 */
#include <dlfcn.h>
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { ROUNDS = 40, CALLS = 2000, MOST = 256, IMPORTS = 50, OTHERS = 2000, BYTES = 2 << 20 };

extern char **environ;

static int (*alloc)(unsigned long long *, size_t);
static int (*release)(unsigned long long);
static int (*launch)(void *, unsigned int, unsigned int, unsigned int, unsigned int, unsigned int, unsigned int,
		     unsigned int, void *, void **, void **);
static int (*event_query)(void *), (*stream_query)(void *);
static void *event;
static int (*create)(unsigned long long *, size_t, const int *, unsigned long long);
static int (*release_handle)(unsigned long long);
static int (*export_handle)(int *, unsigned long long, int, unsigned long long);
static int (*import_handle)(unsigned long long *, void *, int);
static const int properties[8] = {1, 1, 1}; /* pinned, to be exported by descriptors, on device 0 */
static int (*get_proc_address)(const char *, void **, int, uint64_t, int *);

static double now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return (double)time.tv_sec * 1e9 + (double)time.tv_nsec;
}

static void ask_clock(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
}

static void launch_once(void)
{
	launch(NULL, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL);
}

static void query(void)
{
	event_query(event);
	stream_query(NULL);
}

static void alloc_and_free(void)
{
	unsigned long long pointer;

	if (alloc(&pointer, 1 << 20) || release(pointer))
		exit(1);
}

static void create_and_release(void)
{
	unsigned long long handle;

	if (create(&handle, BYTES, properties, 0) || release_handle(handle))
		exit(6);
}

/* Exports new memory and imports it. Returns the nanoseconds of the import. */
static double import_once(unsigned long long *imported)
{
	unsigned long long handle;
	int descriptor;

	if (create(&handle, BYTES, properties, 0) || export_handle(&descriptor, handle, 1, 0))
		exit(7);
	double start = now();
	if (import_handle(imported, (void *)(intptr_t)descriptor, 1))
		exit(8);
	double end = now();
	close(descriptor);
	return end - start;
}

static void measure_import(const char *name)
{
	double best = 1e18;

	for (int i = 0; i < IMPORTS; i++) {
		unsigned long long imported;
		double each = import_once(&imported);
		best = each < best ? each : best;
		release_handle(imported);
	}
	printf("%s %.3f\n", name, best);
}

static void look_up(void)
{
	void *address;
	int status;

	get_proc_address("cuLaunchKernel", &address, 12000, 0, &status);
}

static void measure(const char *name, void (*call)(void))
{
	double best = 1e18;

	for (int round = 0; round < ROUNDS; round++) {
		double start = now();
		for (int i = 0; i < CALLS; i++)
			call();
		double each = (now() - start) / CALLS;
		best = each < best ? each : best;
	}
	printf("%s %.3f\n", name, best);
}

static void open_context(void)
{
	void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
	void *context;

	if (!library)
		exit(2);
	int (*init)(unsigned int) = (int (*)(unsigned int))dlsym(library, "cuInit");
	int (*retain)(void **, int) = (int (*)(void **, int))dlsym(library, "cuDevicePrimaryCtxRetain");
	int (*set)(void *) = (int (*)(void *))dlsym(library, "cuCtxSetCurrent");
	*(void **)&alloc = dlsym(library, "cuMemAlloc_v2");
	*(void **)&release = dlsym(library, "cuMemFree_v2");
	*(void **)&launch = dlsym(library, "cuLaunchKernel");
	*(void **)&event_query = dlsym(library, "cuEventQuery");
	*(void **)&stream_query = dlsym(library, "cuStreamQuery");
	*(void **)&get_proc_address = dlsym(library, "cuGetProcAddress_v2");
	*(void **)&create = dlsym(library, "cuMemCreate");
	*(void **)&release_handle = dlsym(library, "cuMemRelease");
	*(void **)&export_handle = dlsym(library, "cuMemExportToShareableHandle");
	*(void **)&import_handle = dlsym(library, "cuMemImportFromShareableHandle");
	int (*new_event)(void **, unsigned int) = (int (*)(void **, unsigned int))dlsym(library, "cuEventCreate");
	if (init(0) || retain(&context, 0) || set(context) || new_event(&event, 0))
		exit(3);
}

static double start_many(const char *self, int count)
{
	char *arguments[] = {(char *)self, "start", NULL};
	pid_t children[MOST];
	int status, failed = 0;
	double start = now();

	for (int i = 0; i < count; i++)
		if (posix_spawn(&children[i], self, NULL, NULL, arguments, environ))
			exit(4);
	for (int i = 0; i < count; i++) {
		waitpid(children[i], &status, 0);
		failed |= status;
	}
	if (failed)
		exit(5);
	return (now() - start) / 1e6;
}

int main(int argc, char **argv)
{
	if (argc == 3 && !strcmp(argv[1], "starts")) {
		printf("%.3f\n", start_many(argv[0], atoi(argv[2]) < MOST ? atoi(argv[2]) : MOST));
		return 0;
	}
	open_context();
	if (argc == 2 && !strcmp(argv[1], "start")) {
		alloc_and_free();
		return 0;
	}
	measure("clock", ask_clock);
	measure("launch", launch_once);
	measure("query", query);
	measure("mem_alloc_free", alloc_and_free);
	measure("mem_create", create_and_release);
	measure("get_proc_address", look_up);
	measure_import("import_first");
	for (int i = 0; i < OTHERS; i++) {
		unsigned long long kept;
		(void)import_once(&kept);
	}
	measure_import("import_after");
	return 0;
}
