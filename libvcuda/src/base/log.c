/* See base/log.h. One write(2) writes a whole line, so that no stdio buffer of the program is touched. */
#include "base/log.h"

#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *const names[] = {"error", "warning", "info", "debug"};
static enum log_level chosen = LOG_ERROR;

static void choose(void)
{
	const char *text = getenv("VGPU_LOG_LEVEL");

	for (size_t i = 0; text && i < sizeof(names) / sizeof(names[0]); i++)
		if (!strcmp(text, names[i]))
			chosen = (enum log_level)i;
}

void log_line(enum log_level level, const char *format, ...)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	int saved = errno;
	char line[512];
	va_list arguments;

	pthread_once(&once, choose);
	if (level > chosen)
		return;
	int length = snprintf(line, sizeof(line), "vgpu: %s: ", names[level]);
	va_start(arguments, format);
	int added = vsnprintf(line + length, sizeof(line) - (size_t)length - 1, format, arguments);
	va_end(arguments);
	length = added < 0 ? length : length + added;
	if (length > (int)sizeof(line) - 2)
		length = (int)sizeof(line) - 2;
	line[length] = '\n';
	ssize_t written = write(STDERR_FILENO, line, (size_t)length + 1);
	(void)written;
	errno = saved;
}
