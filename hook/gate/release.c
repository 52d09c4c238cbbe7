/*
 * Implements release.h. The loader is started by its path, because the interpreter's file names the one of the host. It
 * does not read the host's /etc/ld.so.cache.
 */
#include "release.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "report.h"

#if defined(__x86_64__)
#define MULTIARCH "x86_64-linux-gnu"
#define LOADER "ld-linux-x86-64.so.2"
#elif defined(__aarch64__)
#define MULTIARCH "aarch64-linux-gnu"
#define LOADER "ld-linux-aarch64.so.1"
#else
#error "VGPU_RELEASE: knows the loaders of x86-64 and aarch64 only"
#endif

#define OWN_PATH "/usr/bin/vgpu-gate"
#define ARGS_MAX 1024
#define PROGRAM_WORDS 8 /* "-I", "-S", "-X", "utf8", "-c" and its code, the root, the module */

static char root[PATH_MAX];
static char loader[PATH_MAX + sizeof "/lib/" MULTIARCH "/" LOADER];
static char libraries[2 * PATH_MAX + sizeof "/lib/" MULTIARCH ":/usr/lib/" MULTIARCH];
static char python[PATH_MAX + sizeof VGPU_PYTHON];

static const struct program {
	const char *name, *module; /* the module's main() is the program; NULL: the program is Python itself */
} programs[] = {
	{"vgpuctl", "vgpu.node.ctl.main"},
	{"vgpud", "vgpu.node.daemon.command"},
	{"vgpu-python", NULL},
};

/* Without site, which would add directories of the host. Programs start Python again by sys.executable. */
static const char code[] =
	"import sys\n"
	"from importlib import import_module\n"
	"root, module = sys.argv[1:3]\n"
	"del sys.argv[:3]\n"
	"if sys.prefix != root + '/usr':\n"
	"    sys.exit(f'{sys.argv[0]}: {root}: expected its standard library, found that of {sys.prefix}; " RELEASE_AGAIN
	"')\n"
	"sys.path.insert(0, root + '" VGPU_PYTHON_PATH "')\n"
	"sys.executable = root + '/usr/bin/vgpu-python'\n"
	"sys.exit(import_module(module).main())\n";

/* A removed file's path ends in " (deleted)". The loader splits its list of directories at : and ; and expands $. */
static bool find_root(void)
{
	ssize_t n = readlink("/proc/self/exe", root, sizeof root);
	size_t len = n < 0 || n == sizeof root ? 0 : (size_t)n, own = sizeof OWN_PATH - 1;

	if (n < 0)
		return false;
	errno = len ? EINVAL : ENAMETOOLONG;
	root[len] = 0;
	if (len < own || strcmp(root + len - own, OWN_PATH) != 0 || strpbrk(root, ":;$"))
		return false;
	root[len - own] = 0;
	return true;
}

const char *release_python(char **words)
{
	if (!find_root())
		return "find the release: expected this program's file to be usr/bin/vgpu-gate in it, and a path "
		       "without : ; and $";
	snprintf(loader, sizeof loader, "%s/lib/" MULTIARCH "/" LOADER, root);
	snprintf(libraries, sizeof libraries, "%s/lib/" MULTIARCH ":%s/usr/lib/" MULTIARCH, root, root);
	snprintf(python, sizeof python, "%s" VGPU_PYTHON, root);
	words[0] = loader;
	words[1] = "--inhibit-cache";
	words[2] = "--library-path";
	words[3] = libraries;
	words[4] = python;
	words[5] = "-B"; /* a release never changes, so no byte code is written to it */
	return NULL;
}

char *release_root(void)
{
	return root;
}

static const struct program *find_program(const char *name)
{
	for (size_t i = 0; i < sizeof programs / sizeof *programs; i++)
		if (!strcmp(name, programs[i].name))
			return &programs[i];
	return NULL;
}

bool release_has_program(const char *name)
{
	return find_program(name) != NULL;
}

int release_program(const char *name, int argc, char **argv)
{
	char *words[RELEASE_PYTHON_WORDS + PROGRAM_WORDS + ARGS_MAX + 1];
	char *options[PROGRAM_WORDS] = {"-I", "-S", "-X", "utf8", "-c", (char *)code, root};
	const struct program *program = find_program(name);
	size_t n = RELEASE_PYTHON_WORDS;
	const char *step;

	if (argc > ARGS_MAX) {
		report(name, "arguments: expected at most %d, found %d", ARGS_MAX - 1, argc - 1);
		return 2;
	}
	step = release_python(words);
	if (!step) {
		options[PROGRAM_WORDS - 1] = (char *)program->module;
		for (size_t i = 0; program->module && i < PROGRAM_WORDS; i++)
			words[n++] = options[i];
		for (int i = !program->module; i <= argc; i++) /* the code takes argv[0], Python itself does not */
			words[n++] = argv[i];
		execv(loader, words);
		step = loader;
	}
	report(name, "%s: %s; " RELEASE_AGAIN, step, strerror(errno));
	return 1;
}
