/* What the C programs of these tests share. Each check that fails is one line of output; the status is their number. */
#include <stdio.h>
#include <string.h>

typedef unsigned long long ptr;
typedef struct opaque *handle;

enum { OK, INVALID_VALUE, OUT_OF_MEMORY, INVALID_HANDLE = 400, NOT_READY = 600, NOT_SUPPORTED = 801 };

static int failures;

#define EXPECT(call, want) expect(#call, __LINE__, (long long)(call), (long long)(want))

static void expect(const char *call, int line, long long got, long long want)
{
	if (got == want)
		return;
	printf("line %d: %s is %lld, expected %lld\n", line, call, got, want);
	failures++;
}
