/*
 * Which names a library gives: ask_names LIBRARY < NAMES
 *
 * One line per name, with the ways by which it is found: "h" by the library's handle, "d" by RTLD_DEFAULT, "n" by RTLD_NEXT.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>

int main(int count, char **words)
{
	static char name[256];
	void *library = count > 1 ? dlopen(words[1], RTLD_NOW | RTLD_GLOBAL) : NULL;

	if (!library) {
		fprintf(stderr, "%s\n", dlerror());
		return 1;
	}
	while (scanf("%255s", name) == 1)
		printf("%s %s%s%s\n", name, dlsym(library, name) ? "h" : "", dlsym(RTLD_DEFAULT, name) ? "d" : "",
		       dlsym(RTLD_NEXT, name) ? "n" : "");
	return 0;
}
