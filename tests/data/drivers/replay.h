/* cuGetProcAddress of a stand-in, by the table `rows` of the file that includes this: recorded_drivers.py writes it. */
#include <string.h>

#define UNTOUCHED ((void *)1)

struct answer {
	int result, status;
	void *function;
};

struct row {
	const char *name;
	unsigned long long flags;
	int since; /* the first version of CUDA for which this is the answer; rows are in the order of name, flags and version */
	struct answer second, first;
};

static int answered(const struct answer *answer, void **function, int *status)
{
	if (answer->function != UNTOUCHED)
		*function = answer->function;
	if (status && answer->status != 77)
		*status = answer->status;
	return answer->result;
}

static const struct row *row_of(const struct row *rows, size_t count, const char *name, int version,
				unsigned long long flags)
{
	const struct row *found = 0;
	size_t first = 0;

	for (size_t step = 1 << 20; step; step /= 2)
		if (first + step < count && strcmp(rows[first + step].name, name) < 0)
			first += step;
	for (size_t i = first; i < count && strcmp(rows[i].name, name) <= 0; i++)
		if (rows[i].flags == flags && rows[i].since <= version && !strcmp(rows[i].name, name))
			found = &rows[i];
	return found;
}

#define ROW row_of(rows, sizeof(rows) / sizeof(*rows), name, version, flags)
#define REPLAY_FIRST \
	int cuGetProcAddress(const char *name, void **function, int version, unsigned long long flags) \
	{ \
		const struct row *row = ROW; \
		return row ? answered(&row->first, function, 0) : 1; \
	}
#define REPLAY_SECOND \
	int cuGetProcAddress_v2(const char *name, void **function, int version, unsigned long long flags, int *status) \
	{ \
		const struct row *row = ROW; \
		return row ? answered(&row->second, function, status) : 1; \
	}
