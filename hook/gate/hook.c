/*
 * Implements hook.h: reads the arguments, the state and config.json, and decides whether to leave the container alone,
 * refuse it, or run vgpu.hook.main.
 */
#include "hook.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "deadline.h"
#include "input.h"
#include "interpreter.h"
#include "marker.h"
#include "report.h"

#define PROGRAM "vgpu-hook"
#define STOPPED "poststop"
#define USAGE \
	"expected [--config /PATH] [--dry-run] [--standalone any|key] [--annotation vgpu.io/KEY=VALUE]... " \
	"[--prepared CLAIM-N] prestart|createRuntime|poststop"
#define EXIT_REFUSED 1
#define EXIT_USAGE 2
#define ANNOTATIONS_MAX 8
#define NO_END "no end of it within " INPUT_TEXT(VGPU_STDIN_SECONDS) " s"

enum verdict { LEAVE, REFUSE, RUN };

/* The options. vgpu.hook.main always gets them in this order, each in a word of its own, and the stage at the end. */
struct hook_args {
	const char *config, *standalone, *prepared, *stage;
	const char *annotation[ANNOTATIONS_MAX];
	size_t annotations;
	bool dry_run;
};

static bool is_stage(const char *word)
{
	return !strcmp(word, "prestart") || !strcmp(word, "createRuntime") || !strcmp(word, STOPPED);
}

/* The value of the option `name` at argv[*i], in the same word or in the next one, which is passed. NULL: another one. */
static const char *value_of(char **argv, int argc, int *i, const char *name)
{
	size_t len = strlen(name);

	if (!strncmp(argv[*i], name, len) && argv[*i][len] == '=')
		return argv[*i] + len + 1;
	return !strcmp(argv[*i], name) && *i + 1 < argc ? argv[++*i] : NULL;
}

static bool read_option(int argc, char **argv, int *i, struct hook_args *args)
{
	const char *value;

	if (!strcmp(argv[*i], "--dry-run"))
		return args->dry_run = true;
	if ((value = value_of(argv, argc, i, "--config")))
		return (args->config = value) != NULL;
	if ((value = value_of(argv, argc, i, "--standalone"))) {
		args->standalone = value;
		return !strcmp(value, "any") || !strcmp(value, "key");
	}
	if ((value = value_of(argv, argc, i, "--prepared")))
		return (args->prepared = value) != NULL;
	if (!(value = value_of(argv, argc, i, "--annotation")) || args->annotations == ANNOTATIONS_MAX)
		return false;
	args->annotation[args->annotations++] = value;
	return !strncmp(value, "vgpu.io/", 8) && strchr(value, '=');
}

static bool read_args(int argc, char **argv, struct hook_args *args)
{
	for (int i = 1; i < argc; i++) {
		int at = i;
		if (!args->stage && is_stage(argv[i]))
			args->stage = argv[i];
		else if (!read_option(argc, argv, &i, args)) {
			report(PROGRAM, "arguments: " USAGE ", found %s", argv[at]);
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
	report(PROGRAM,
	       "%s: expected %s, found %s; this container asks for a share of a GPU and is refused: "
	       "check what the OCI runtime passes to its hooks",
	       what, expected, found);
	return REFUSE;
}

/* Runtimes start hooks in the bundle's directory (at poststop not all do), so config.json is looked for there. */
static enum verdict decide_without_state(const struct input *state, const struct hook_args *args, const char *why)
{
	struct input config;
	struct marks marks;
	struct stat st;
	bool marked = args->annotations || args->prepared || marker_is_anywhere(state);

	input_read_file(AT_FDCWD, "config.json", 0, &config, &st);
	if (!marker_of_config(&config, &marks))
		marked |= marker_is_anywhere(&config);
	else if (!args->prepared && marker_is_sandbox(&marks, NULL))
		return LEAVE;
	else
		marked |= marks.vgpu;
	return refuse_if(marked, "state JSON on stdin",
			 "one JSON object of at most " INPUT_TEXT(STATE_MAX_MIB) " MiB that names its bundle", why);
}

/* A container without a marker of its own still gets what the command line has for all containers. */
static enum verdict decide(const struct marks *of_state, const struct hook_args *args)
{
	char path[PATH_MAX + sizeof "/config.json"];
	struct input config;
	struct marks marks;
	struct stat st;
	bool whole;

	snprintf(path, sizeof path, "%s/config.json", of_state->bundle);
	input_read_file(AT_FDCWD, path, 0, &config, &st);
	whole = marker_of_config(&config, &marks);
	if (!args->prepared && marker_is_sandbox(of_state, whole ? &marks : NULL))
		return LEAVE;
	if (of_state->vgpu || (whole && marks.vgpu) || args->annotations || args->prepared)
		return RUN; /* vgpu.hook.main reports a bad config.json */
	if (whole)
		return LEAVE;
	return refuse_if(marker_is_anywhere(&config), path,
			 "one JSON object of at most " INPUT_TEXT(CONFIG_MAX_MIB) " MiB", marks.why);
}

static int run(const struct input *state, const struct hook_args *args)
{
	char *argv[INTERPRETER_ARGS_MAX + 1] = {0};
	size_t n = 0;
	const char *step = NULL;

	if (args->config) {
		argv[n++] = "--config";
		argv[n++] = (char *)args->config;
	}
	if (args->dry_run)
		argv[n++] = "--dry-run";
	if (args->standalone) {
		argv[n++] = "--standalone";
		argv[n++] = (char *)args->standalone;
	}
	if (args->prepared) {
		argv[n++] = "--prepared";
		argv[n++] = (char *)args->prepared;
	}
	for (size_t i = 0; i < args->annotations; i++) {
		argv[n++] = "--annotation";
		argv[n++] = (char *)args->annotation[i];
	}
	argv[n] = (char *)args->stage;
	if (strcmp(args->stage, STOPPED)) /* a stop opens nothing of a container */
		step = deadline_fork(PROGRAM);
	if (!step)
		step = interpreter_exec(state, argv);
	report(PROGRAM, "%s: %s; %s", step, strerror(errno),
	       errno == EFBIG ? "raise LimitFSIZE= of the service that runs the container runtime" : INTERPRETER_AGAIN);
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
	signal(SIGXFSZ,
	       SIG_IGN); /* a write past the runtime's RLIMIT_FSIZE is an error with a message, not a silent end */
	if (!read_args(argc, argv, &args))
		return EXIT_USAGE;
	error = input_read_stdin(&state);
	if (error)
		verdict = decide_without_state(&state, &args, error == ETIMEDOUT ? NO_END : strerror(error));
	else if (!marker_of_state(&state, &marks))
		verdict = decide_without_state(&state, &args, marks.why);
	else
		verdict = decide(&marks, &args);
	return verdict == RUN ? run(&state, &args) : verdict == REFUSE ? EXIT_REFUSED : 0;
}
