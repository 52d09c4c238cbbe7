/*
 * Implements hook.h: reads the arguments, the state and config.json, and decides whether to leave the container alone,
 * refuse it, or run vgpu.hook.main.
 */
#include "hook.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "input.h"
#include "interpreter.h"
#include "marker.h"
#include "report.h"

#define PROGRAM "vgpu-hook"
#define USAGE "expected [--config /PATH] [--dry-run] prestart|createRuntime|poststop"
#define EXIT_REFUSED 1
#define EXIT_USAGE 2

enum verdict { LEAVE, REFUSE, RUN };

/* The options. vgpu.hook.main always gets them in this order: --config PATH --dry-run STAGE. */
struct hook_args {
    const char *config, *stage;
    bool dry_run;
};

static bool is_stage(const char *word)
{
    return !strcmp(word, "prestart") || !strcmp(word, "createRuntime") || !strcmp(word, "poststop");
}

static bool read_args(int argc, char **argv, struct hook_args *args)
{
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--config") && i + 1 < argc)
            args->config = argv[++i];
        else if (!strncmp(argv[i], "--config=", 9))
            args->config = argv[i] + 9;
        else if (!strcmp(argv[i], "--dry-run"))
            args->dry_run = true;
        else if (!args->stage && is_stage(argv[i]))
            args->stage = argv[i];
        else {
            report(PROGRAM, "arguments: " USAGE ", found %s", argv[i]);
            return false;
        }
    }
    /* Python runs in /, where a relative path would name another file. */
    if (args->stage && (!args->config || args->config[0] == '/'))
        return true;
    report(PROGRAM, "arguments: " USAGE ", found %s", args->stage ? "a relative path after --config" : "no stage");
    return false;
}

static enum verdict refuse_if(bool marked, const char *what, const char *expected, const char *found)
{
    if (!marked)
        return LEAVE;
    report(PROGRAM, "%s: expected %s, found %s; this container asks for a share of a GPU and is refused: "
           "check what the OCI runtime passes to its hooks", what, expected, found);
    return REFUSE;
}

/* Runtimes start hooks in the bundle's directory (at poststop not all do), so config.json is looked for there. */
static enum verdict decide_without_state(const struct input *state, const char *why)
{
    struct input config;
    struct marks marks;
    struct stat st;
    bool marked = marker_is_anywhere(state);

    input_read_file(AT_FDCWD, "config.json", 0, &config, &st);
    if (!marker_of_config(&config, &marks))
        marked |= marker_is_anywhere(&config);
    else if (marks.sandbox)
        return LEAVE;
    else
        marked |= marks.vgpu;
    return refuse_if(marked, "state JSON on stdin",
                     "one JSON object of at most 1048576 bytes that names its bundle", why);
}

static enum verdict decide(const struct marks *of_state)
{
    char path[PATH_MAX + sizeof "/config.json"];
    struct input config;
    struct marks marks;
    struct stat st;
    bool whole;

    if (of_state->sandbox)
        return LEAVE;
    snprintf(path, sizeof path, "%s/config.json", of_state->bundle);
    input_read_file(AT_FDCWD, path, 0, &config, &st);
    whole = marker_of_config(&config, &marks);
    if (whole && marks.sandbox)
        return LEAVE;
    if (of_state->vgpu || (whole && marks.vgpu))
        return RUN; /* vgpu.hook.main reports a bad config.json */
    if (whole)
        return LEAVE;
    return refuse_if(marker_is_anywhere(&config), path, "one JSON object of at most 67108864 bytes", marks.why);
}

static int run(const struct input *state, const struct hook_args *args)
{
    char *argv[5] = {0};
    size_t n = 0;
    const char *step;

    if (args->config) {
        argv[n++] = "--config";
        argv[n++] = (char *)args->config;
    }
    if (args->dry_run)
        argv[n++] = "--dry-run";
    argv[n] = (char *)args->stage;
    step = interpreter_exec(state, argv);
    report(PROGRAM, "%s: %s", step, strerror(errno));
    return EXIT_REFUSED;
}

int hook_main(int argc, char **argv)
{
    struct hook_args args = {0};
    struct marks marks;
    struct input state;
    enum verdict verdict;
    int error;

    interpreter_standard_fds();
    if (!read_args(argc, argv, &args))
        return EXIT_USAGE;
    error = input_read_stdin(&state);
    if (error)
        verdict = decide_without_state(&state, strerror(error));
    else if (!marker_of_state(&state, &marks))
        verdict = decide_without_state(&state, marks.why);
    else
        verdict = decide(&marks);
    return verdict == RUN ? run(&state, &args) : verdict == REFUSE ? EXIT_REFUSED : 0;
}
