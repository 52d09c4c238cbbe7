/* CUDA's runtime linked statically: what it finds of the driver. It prints a line for each call: name, result, value. */
#include <stdio.h>

int cudaDriverGetVersion(int *version);
int cudaRuntimeGetVersion(int *version);
int cudaGetDeviceCount(int *count);
int cudaMalloc(void **pointer, size_t size);

int main(void)
{
	void *pointer;
	int value = -1;
	int result = cudaDriverGetVersion(&value);

	printf("cudaDriverGetVersion %d %d\n", result, value);
	result = cudaRuntimeGetVersion(&value);
	printf("cudaRuntimeGetVersion %d %d\n", result, value);
	result = cudaGetDeviceCount(&value);
	printf("cudaGetDeviceCount %d %d\n", result, value);
	printf("cudaMalloc %d\n", cudaMalloc(&pointer, 4096));
	return 0;
}
