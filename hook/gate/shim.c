/*
 * Implements shim.h: looks for the real runtime in fixed directories, not in PATH, unless --vgpu-runtime names it, and
 * execs it.
 */
#include "shim.h"

#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "bundle.h"
#include "report.h"
#include "shim_args.h"

#define PROGRAM "vgpu-runtime"
#define EXIT_REFUSED 1
#define EXIT_USAGE 2

static const char *const directories[] = {"/usr/local/sbin", "/usr/local/bin", "/usr/sbin",
					  "/usr/bin",        "/sbin",          "/bin"};

/* Whether the path is an executable file other than this program, which would otherwise start itself for ever. */
static bool is_runtime(const char *path)
{
	struct stat st, self;

	if (stat(path, &st) < 0 || !S_ISREG(st.st_mode) || access(path, X_OK) < 0)
		return false;
	return stat("/proc/self/exe", &self) < 0 || st.st_dev != self.st_dev || st.st_ino != self.st_ino;
}

static bool find(const char *name, char *path, size_t size)
{
	for (size_t i = 0; i < sizeof directories / sizeof *directories; i++) {
		int n = snprintf(path, size, "%s/%s", directories[i], name);
		if (n > 0 && (size_t)n < size && is_runtime(path))
			return true;
	}
	return false;
}

/* The path of the real runtime. NULL: there is none, and the message has been printed. */
static const char *real_runtime(const char *name, const char *given)
{
	static char path[PATH_MAX];

	if (given && is_runtime(given))
		return given;
	if (!given &&
	    (name ? find(name, path, sizeof path) : find("runc", path, sizeof path) || find("crun", path, sizeof path)))
		return path;
	report(PROGRAM,
	       "find the OCI runtime: expected %s, an executable other than this one, found none; "
	       "install it or name it with --vgpu-runtime /PATH",
	       given  ? given
	       : name ? name
		      : "runc or crun in /usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin");
	return NULL;
}

int shim_main(const char *name, int argc, char **argv)
{
	struct shim_args args;
	const char *runtime;

	if (shim_args_read(argc, argv, &args) < 0) {
		report(PROGRAM, "arguments: expected an absolute path after --vgpu-runtime and --vgpu-config, "
				"any or key after --vgpu-standalone, and vgpu.io/KEY=VALUE after --vgpu-annotation");
		return EXIT_USAGE;
	}
	report_to_runtime_log(args.log_json ? args.log : NULL);
	runtime = real_runtime(name, args.runtime);
	if (!runtime || (args.creates && !bundle_add_hooks(&args)))
		return EXIT_REFUSED;
	argv[0] = (char *)runtime;
	execv(runtime, argv);
	report(PROGRAM, "exec %s: %s", runtime, strerror(errno));
	return EXIT_REFUSED;
}
