/*
 * Messages on the program's stderr, one line each. VGPU_LOG_LEVEL (error, warning, info, debug) sets the least severe
 * level that is written. libvcuda reads it once, and it changes nothing else. The default is error. A limit that is hit
 * is no error: programs probe for limits.
 *
 * Belongs here: how a line is written. Not the messages, which stand where their events happen.
 */
#ifndef VCUDA_LOG_H
#define VCUDA_LOG_H

#include <stdatomic.h>

enum log_level { LOG_ERROR, LOG_WARNING, LOG_INFO, LOG_DEBUG };

void log_line(enum log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* For a message that every call would repeat: only the first call writes it. */
#define log_once(level, ...) \
	do { \
		static atomic_flag said = ATOMIC_FLAG_INIT; \
		if (!atomic_flag_test_and_set(&said)) \
			log_line(level, __VA_ARGS__); \
	} while (0)

#endif
