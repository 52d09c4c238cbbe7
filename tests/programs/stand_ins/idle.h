/*
 * Functions that do nothing and succeed, for libraries whose work nobody looks at. make.py writes a FUNCTION line for
 * each.
 */
#ifndef IDLE_H
#define IDLE_H

#include <stdlib.h>

/* What a handle points to. It is never freed: a program makes few of them. */
static inline void *object(void)
{
	return calloc(1, 4096);
}

#define FUNCTION(name, ...) \
	__attribute__((visibility("default"))) long name(long a, long b, long c, long d, long e, long f, long g, \
							 long h, long i, long j) \
	{ \
		long words[] = {a, b, c, d, e, f, g, h, i, j}; \
		(void)words; \
		__VA_ARGS__ \
		return 0; \
	}

#endif
