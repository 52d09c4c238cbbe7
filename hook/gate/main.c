/*
 * vgpu-gate: one static program that runs under several names. As vgpu-hook it is the OCI hook's entry (hook.c).
 * As vgpu-runtime or vgpu-runtime-<name> it is an OCI runtime in front of the real one (shim.c). In a release it is the
 * programs in Python, too (release.c).
 *
 * Belongs here: the choice between them by the name in argv[0]. The program runs as root before every container of the
 * node starts, so it does as little as possible and trusts no input.
 */
#include <stdio.h>
#include <string.h>

#include "hook.h"
#ifdef VGPU_RELEASE
#include "release.h"
#endif
#include "report.h"
#include "shim.h"

static const char help[] =
	"Usage: vgpu-hook [OPTIONS] prestart|createRuntime|poststop < state.json\n"
	"\n"
	"The OCI hook of vgpu: gives a container its share of a GPU, and takes it back after the container's end.\n"
	"OCI runtimes run it; a container that asks for no GPU is left alone.\n"
	"\n"
	"  --config /PATH  the compiled settings (default: /var/lib/vgpu/config.json)\n"
	"  --dry-run       print the plan for the container, and change nothing\n"
	"  --standalone any|key\n"
	"                  outside Kubernetes, all annotations are requests, or only those with this node's key\n"
	"                  (default: the setting standalone.requests)\n"
	"  --annotation vgpu.io/KEY=VALUE\n"
	"                  the request of containers outside Kubernetes that bring none; up to 8 times\n"
	"  --version       print the version and exit\n"
	"  -h, --help      print this text and exit\n"
	"\n"
	"Exit status: 0 done, or nothing to do; 1 the container must not start; 2 wrong arguments.\n"
	"Called vgpu-runtime or vgpu-runtime-NAME, the program is an OCI runtime in front of runc, crun or NAME.\n";

int main(int argc, char **argv)
{
	const char *slash = argc > 0 ? strrchr(argv[0], '/') : NULL;
	const char *name = slash ? slash + 1 : argc > 0 ? argv[0] : "";

#ifdef VGPU_RELEASE
	if (release_has_program(name))
		return release_program(name, argc, argv);
#endif
	if (!strcmp(name, "vgpu-runtime"))
		return shim_main(NULL, argc, argv);
	if (!strncmp(name, "vgpu-runtime-", 13) && name[13])
		return shim_main(name + 13, argc, argv);
	if (argc == 2 && !strcmp(argv[1], "--version")) {
		puts("vgpu-hook " VGPU_VERSION);
		return 0;
	}
	if (argc == 2 && (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h"))) {
		fputs(help, stdout);
		return 0;
	}
	if (!strcmp(name, "vgpu-hook"))
		return hook_main(argc, argv);
	report("vgpu-gate", "name: expected to be called vgpu-hook, vgpu-runtime or vgpu-runtime-<name>, found %s",
	       name);
	return 2;
}
