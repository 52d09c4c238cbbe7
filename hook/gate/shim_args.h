/*
 * The command line of an OCI runtime (runc, crun and what takes after them), read as far as needed: is it create or
 * run, of which bundle. The runtime itself judges whether the line is right.
 */
#ifndef VGPU_GATE_SHIM_ARGS_H
#define VGPU_GATE_SHIM_ARGS_H

#include <stdbool.h>

struct shim_args {
    const char *runtime;     /* --vgpu-runtime, or NULL */
    const char *vgpu_config; /* --vgpu-config, or NULL */
    const char *log;         /* the runtime's --log, or NULL */
    bool log_json;           /* its --log-format is json */
    bool creates;            /* the subcommand is create or run; then: */
    const char *bundle;      /* --bundle, or "." */
    const char *config;      /* crun's --config, relative to the working directory, or NULL: the bundle's config.json */
};

/* Takes the shim's own options out of argv. Returns the new argc, or -1 where one of them has no absolute path. */
int shim_args_read(int argc, char **argv, struct shim_args *args);

#endif
