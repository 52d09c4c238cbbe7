/*
 * Implements report.h. Nothing here waits for a reader of the logs, and a log that cannot be written is ignored: stderr
 * has the line as well.
 */
#include "report.h"

#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define LINE_BYTES 1024
#define PRIORITY "<27>" /* facility daemon, severity error */

static const char *runtime_log;

void report_to_runtime_log(const char *path)
{
	runtime_log = path;
}

/* `text` has no control characters any more. It may not be UTF-8: Go's JSON decoder replaces such bytes. */
static void to_runtime_log(const char *text, size_t len)
{
	char json[2 * LINE_BYTES + 64] = "{\"level\":\"error\",\"msg\":\"";
	size_t at = strlen(json);
	int fd = runtime_log
			 ? open(runtime_log, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOCTTY | O_NONBLOCK, 0644)
			 : -1;

	if (fd < 0)
		return;
	for (size_t i = 0; i < len; i++) {
		if (text[i] == '"' || text[i] == '\\')
			json[at++] = '\\';
		json[at++] = text[i];
	}
	memcpy(json + at, "\"}\n", 3);
	if (write(fd, json, at + 3) < 0 || close(fd) < 0)
		return; /* stderr has the line, and this program exits soon */
}

/* Does not use syslog(3), which waits for ever for a hanging log daemon and would delay the container's start. */
static void to_log(const char *text, size_t len)
{
	struct sockaddr_un log = {.sun_family = AF_UNIX, .sun_path = VGPU_SYSLOG};
	int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

	if (fd < 0)
		return;
	sendto(fd, text, len, MSG_NOSIGNAL, (struct sockaddr *)&log, sizeof log);
	close(fd);
}

void report(const char *program, const char *format, ...)
{
	static const size_t skip = sizeof PRIORITY - 1;
	char line[LINE_BYTES];
	size_t len = (size_t)snprintf(line, sizeof line, PRIORITY "%s: ", program);
	va_list args;

	va_start(args, format);
	vsnprintf(line + len, sizeof line - 1 - len, format, args);
	va_end(args);
	len = strlen(line);
	for (size_t i = 0; i < len; i++)
		if ((unsigned char)line[i] < 0x20 || line[i] == 0x7f)
			line[i] = '?';
	to_log(line, len);
	to_runtime_log(line + skip, len - skip);
	line[len] = '\n';
	if (write(STDERR_FILENO, line + skip, len + 1 - skip) < 0)
		return; /* the exit status still reports the failure */
}
