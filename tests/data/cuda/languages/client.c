/*
 * What a program sees of each card, through dlopen: client LIBRARY. Go and Rust have the same program beside this one.
 *
 * One line per card: its index, the total by cuMemGetInfo, and the results of allocating half of it and then all of it.
 */
#include <dlfcn.h>
#include <stdio.h>

static void *library;

static int call(const char *name, unsigned long long a, unsigned long long b)
{
	int (*function)(unsigned long long, unsigned long long) =
		(int (*)(unsigned long long, unsigned long long))dlsym(library, name);

	return function ? function(a, b) : -1;
}

int main(int count, char **words)
{
	unsigned long long context, pointer, available, total;
	int cards = 0;

	library = count > 1 ? dlopen(words[1], RTLD_NOW) : NULL;
	if (!library) {
		fprintf(stderr, "%s\n", dlerror());
		return 1;
	}
	call("cuInit", 0, 0);
	call("cuDeviceGetCount", (unsigned long long)&cards, 0);
	for (int card = 0; card < cards; card++) {
		call("cuDevicePrimaryCtxRetain", (unsigned long long)&context, (unsigned)card);
		call("cuCtxSetCurrent", context, 0);
		call("cuMemGetInfo_v2", (unsigned long long)&available, (unsigned long long)&total);
		int half = call("cuMemAlloc_v2", (unsigned long long)&pointer, total / 2);
		int all = call("cuMemAlloc_v2", (unsigned long long)&pointer, total);

		printf("%d %llu %d %d\n", card, total, half, all);
	}
	return 0;
}
