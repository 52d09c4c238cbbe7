/*
 * Messages on the program's stderr, one line each. VGPU_LOG_LEVEL (error, warning, info, debug) sets how many; it is
 * read once and changes nothing else. The default is error: a limit that is hit is not one, programs probe for it.
 */
#ifndef VCUDA_LOG_H
#define VCUDA_LOG_H

#include <stdatomic.h>

enum log_level { LOG_ERROR, LOG_WARNING, LOG_INFO, LOG_DEBUG };

void log_line(enum log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* For what would otherwise be said at every call. */
#define log_once(level, ...)                                         \
	do {                                                         \
		static atomic_flag said = ATOMIC_FLAG_INIT;          \
		if (!atomic_flag_test_and_set(&said))                \
			log_line(level, __VA_ARGS__);                \
	} while (0)

#endif
