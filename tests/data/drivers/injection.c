/*
 * A library for CUDA_INJECTION64_PATH, which the driver loads in cuInit. It prints in which files a tool finds the
 * driver's functions at that moment: by dlsym, and by cuGetProcAddress.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>

typedef int (*proc_address)(const char *, void **, int, unsigned long long);

static const char *file_of(void *address)
{
	Dl_info info;

	return address && dladdr(address, &info) ? info.dli_fname : "none";
}

int InitializeInjection(void)
{
	void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD), *found = NULL;
	proc_address ask = library ? (proc_address)dlsym(library, "cuGetProcAddress") : NULL;

	if (ask)
		ask("cuMemFree", &found, 11030, 0);
	printf("injected: cuMemFree %s %s\n", file_of(library ? dlsym(library, "cuMemFree_v2") : NULL), file_of(found));
	fflush(stdout);
	return 1;
}
