/*
 * Which names a program finds: names_client HOW LIBRARY < NAMES
 *
 * HOW is `handle` or `global` (dlopen, then the handle or RTLD_DEFAULT), or `default` or `next` for a program that was
 * linked with the library. Prints each name that it finds.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

int main(int argc, char **argv)
{
	const char *how = argc > 1 ? argv[1] : "";
	void *scope = RTLD_DEFAULT;
	char name[256];

	if (!strcmp(how, "handle") || !strcmp(how, "global")) {
		scope = dlopen(argv[2], RTLD_NOW | (*how == 'g' ? RTLD_GLOBAL : RTLD_LOCAL));
		if (!scope) {
			fprintf(stderr, "%s\n", dlerror());
			return 1;
		}
		if (*how == 'g')
			scope = RTLD_DEFAULT;
	} else if (!strcmp(how, "next")) {
		scope = RTLD_NEXT;
	}
	while (scanf("%255s", name) == 1)
		if (dlsym(scope, name))
			puts(name);
	return 0;
}
