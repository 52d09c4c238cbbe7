/*
 * For programs of several cases, of which a run is one: its first argument. What must be so is checked: where it is not, the
 * program says so on stderr and exits with 1.
 */
#ifndef CASES_H
#define CASES_H

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cuda_abi.h"

#define CHECK(condition) \
	do { \
		if (!(condition)) { \
			fprintf(stderr, "line %d: %s\n", __LINE__, #condition); \
			_exit(1); \
		} \
	} while (0)

#define CALL(name, ...) (((CUresult (*)())dlsym(library, #name))(__VA_ARGS__))
#define OK(name, ...) CHECK(CALL(name, __VA_ARGS__) == CUDA_SUCCESS)

static void *library; /* libcuda.so.1 */

static inline void open_libcuda(void)
{
	library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
	CHECK(library);
}

struct named_case {
	const char *name; /* NULL after the last one */
	void (*run)(void);
};

static inline const struct named_case *find_case(const struct named_case *at, int argc, char **argv)
{
	CHECK(argc > 1);
	while (at->name && strcmp(argv[1], at->name))
		at++;
	CHECK(at->name);
	return at;
}

#endif
