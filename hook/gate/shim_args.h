/*
 * The command line of an OCI runtime (runc, crun and those with the same options).
 *
 * Belongs here: reading it as far as the shim needs: whether the subcommand is create or run, of which bundle, and
 * where the runtime logs. The runtime itself checks whether the command line is valid.
 */
#ifndef VGPU_GATE_SHIM_ARGS_H
#define VGPU_GATE_SHIM_ARGS_H

#include <stdbool.h>
#include <stddef.h>

#define SHIM_ANNOTATIONS_MAX 8
#define SHIM_ANNOTATION_LEN 255

struct shim_args {
	const char *runtime;     /* --vgpu-runtime, or NULL */
	const char *vgpu_config; /* --vgpu-config, or NULL */
	const char *standalone;  /* --vgpu-standalone any or key, or NULL */
	const char
		*annotations[SHIM_ANNOTATIONS_MAX]; /* --vgpu-annotation vgpu.io/KEY=VALUE, for clients without one */
	size_t annotation_count;
	const char *log;         /* the runtime's --log, or NULL */
	bool log_json;           /* its --log-format is json */
	bool creates;            /* the subcommand is create or run */
	const char *bundle;      /* if `creates`: --bundle, or "." */
	const char *config; /* if `creates`: crun's --config, relative to the working directory; NULL: config.json */
};

/* Reads argv and takes the shim's own options out of it. Returns the new argc; -1: one of them is not as described. */
int shim_args_read(int argc, char **argv, struct shim_args *args);

#endif
