/*
 * Compiles PTX with NVIDIA's compiler as a library: ptx_compiler FILE ARCHITECTURE... It prints a line for each
 * architecture: its name and the library's result, 0 where it took the code. The prototypes are of the documented
 * interface.
 */
#include <stdio.h>

typedef void *compiler;

int nvPTXCompilerCreate(compiler *made, size_t length, const char *code);
int nvPTXCompilerCompile(compiler compiler, int count, const char *const *options);
int nvPTXCompilerDestroy(compiler *made);

static int compile(const char *code, size_t length, const char *architecture)
{
	char option[64];
	const char *options[] = {option};
	compiler made;
	int result = nvPTXCompilerCreate(&made, length, code);

	snprintf(option, sizeof option, "--gpu-name=%s", architecture);
	if (result)
		return result;
	result = nvPTXCompilerCompile(made, 1, options);
	nvPTXCompilerDestroy(&made);
	return result;
}

int main(int count, char **arguments)
{
	char code[1 << 16];
	FILE *file = fopen(arguments[1], "r");

	if (!file)
		return 1;
	size_t length = fread(code, 1, sizeof code - 1, file);
	code[length] = 0;
	for (int i = 2; i < count; i++)
		printf("%s %d\n", arguments[i], compile(code, length, arguments[i]));
	return 0;
}
