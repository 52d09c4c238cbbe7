/* The driver's libraries through dlopen: one line for each call, with its result and what it gives. */
#include <dlfcn.h>
#include <stdio.h>

static int (*function(const char *file, const char *name))(int *)
{
	void *library = dlopen(file, RTLD_NOW);

	if (!library)
		printf("%s\n", dlerror());
	return library ? (int (*)(int *))dlsym(library, name) : 0;
}

int main(void)
{
	static const char *const calls[][2] = {
		{"libcuda.so.1", "cuDriverGetVersion"},
		{"libcuda.so.1", "cuDeviceGetCount"},
		{"libnvidia-ml.so.1", "nvmlSystemGetCudaDriverVersion"},
		{"libnvidia-ml.so.1", "nvmlDeviceGetCount_v2"},
	};

	for (int i = 0; i < 4; i++) {
		int value = -1;
		int (*called)(int *) = function(calls[i][0], calls[i][1]);
		int result = called ? called(&value) : -1;

		printf("%s %d %d\n", calls[i][1], result, value);
	}
	return 0;
}
