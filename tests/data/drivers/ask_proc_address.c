/*
 * What cuGetProcAddress of a library answers: ask_proc_address LIBRARY VERSION... < NAMES
 *
 * For each name and each of the flags 0, 1 and 2 it asks for all versions, by cuGetProcAddress_v2 and by cuGetProcAddress.
 * One line per name and flag: "name flag" and then, for each version whose answer differs from the one of the version
 * before, "version:answer". An answer is "result,status,function" of the first form, and where the second one differs
 * "/result,function". A function is "-" for NULL, "u" where an error left the pointer alone, the name of the symbol at
 * that address, or "+" without such a symbol; "@" goes before it where it lies in the file below /usr/local/vgpu/driver.
 * A form that the library lacks is "x".
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NAME = 256, FUNCTION = 320, ANSWER = 2 * FUNCTION + 64, STATUS_UNTOUCHED = 77 };

#define UNTOUCHED ((void *)1)

typedef int (*first_form)(const char *, void **, int, unsigned long long);
typedef int (*second_form)(const char *, void **, int, unsigned long long, int *);

static first_form first;
static second_form second;

static void describe(int result, void *address, char *text)
{
	Dl_info info;

	if (result && address == UNTOUCHED)
		strcpy(text, "u");
	else if (!address)
		strcpy(text, "-");
	else if (!dladdr(address, &info) || !info.dli_sname || info.dli_saddr != address)
		strcpy(text, "+");
	else
		snprintf(text, FUNCTION, "%s%s", strstr(info.dli_fname, "/vgpu/driver/") ? "@" : "", info.dli_sname);
}

static void ask(const char *name, int version, unsigned long long flags, char *answer)
{
	char of_second[FUNCTION] = "x", of_first[FUNCTION] = "x";
	void *found = UNTOUCHED;
	int result = 0, result_of_first = 0, status = STATUS_UNTOUCHED;

	if (second) {
		result = second(name, &found, version, flags, &status);
		describe(result, found, of_second);
		answer += sprintf(answer, "%d,%d,%s", result, status, of_second);
	} else {
		answer += sprintf(answer, "x");
	}
	found = UNTOUCHED;
	if (!first) {
		strcpy(answer, "/x");
		return;
	}
	result_of_first = first(name, &found, version, flags);
	describe(result_of_first, found, of_first);
	if (!second || result_of_first != result || strcmp(of_first, of_second))
		sprintf(answer, "/%d,%s", result_of_first, of_first);
}

int main(int count, char **words)
{
	static char name[NAME], answer[ANSWER], before[ANSWER];
	void *library = dlopen(words[1], RTLD_NOW | RTLD_LOCAL);

	if (!library) {
		fprintf(stderr, "%s\n", dlerror());
		return 1;
	}
	first = (first_form)dlsym(library, "cuGetProcAddress");
	second = (second_form)dlsym(library, "cuGetProcAddress_v2");
	while (scanf("%255s", name) == 1)
		for (unsigned long long flags = 0; flags < 3; flags++) {
			printf("%s %llu", name, flags);
			before[0] = 0;
			for (int index = 2; index < count; index++) {
				ask(name, atoi(words[index]), flags, answer);
				if (strcmp(answer, before))
					printf(" %s:%s", words[index], answer);
				strcpy(before, answer);
			}
			putchar('\n');
		}
	return 0;
}
