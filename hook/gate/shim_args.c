/*
 * Implements shim_args.h with tables of the options of runc and crun.
 *
 * For an option before the subcommand that is in no table, the shim guesses. With "=" the option is one word. Without,
 * the next word is its value unless that word is a subcommand or an option. Both possible mistakes are harmless. A
 * create that is overlooked starts a container without a GPU. A create that is none adds the hooks at most to the
 * config.json of a bundle that has a marker.
 */
#include "shim_args.h"

#include <stddef.h>
#include <string.h>

/* Names without their dashes, since runc accepts -root for --root. */
static const char *const global_values[] = {"root",      "log",      "log-format",     "criu",
					    "log-level", "rootless", "cgroup-manager", NULL};
static const char *const global_flags[] = {"debug", "systemd-cgroup", "help", "h", "version", "v", "V", "usage", NULL};
static const char *const subcommands[] = {"checkpoint", "create", "delete", "events", "exec",   "features", "help",
					  "kill",       "list",   "mounts", "pause",  "ps",     "restore",  "resume",
					  "run",        "spec",   "start",  "state",  "update", NULL};
static const char *const create_values[] = {"console-socket", "pid-file", "preserve-fds", "pidfd-socket", NULL};

/* One word of the command line as an option: "--name", "-name" or "--name=value". */
struct option {
	const char *name, *value;
	size_t len;
};

static bool is_option(const char *word)
{
	return word[0] == '-' && word[1];
}

static struct option split(const char *word)
{
	struct option option = {.name = word + 1 + (word[1] == '-')};
	const char *equals = strchr(option.name, '=');

	option.len = equals ? (size_t)(equals - option.name) : strlen(option.name);
	option.value = equals ? equals + 1 : NULL;
	return option;
}

static bool is(struct option option, const char *name)
{
	return strlen(name) == option.len && !memcmp(option.name, name, option.len);
}

static bool in(const char *const *names, struct option option)
{
	for (; *names; names++)
		if (is(option, *names))
			return true;
	return false;
}

static bool is_subcommand(const char *word)
{
	return in(subcommands, (struct option){.name = word, .len = strlen(word)});
}

/* Takes out argv[i] and, if that word has no value in it, argv[i + 1]. NULL: the value does not begin so. */
static const char *take_own(int *argc, char **argv, int i, struct option option, const char *beginning)
{
	int words = option.value ? 1 : 2;
	const char *value = option.value ? option.value : argv[i + 1];

	if (!value || strncmp(value, beginning, strlen(beginning)) != 0)
		return NULL;
	memmove(argv + i, argv + i + words, (size_t)(*argc - i - words + 1) * sizeof *argv);
	*argc -= words;
	return value;
}

/* Whether it is KEY=VALUE, of characters that need no escape in JSON. */
static bool is_annotation(const char *text)
{
	const char *c = text;

	while (*c >= ' ' && *c <= '~' && *c != '"' && *c != '\\')
		c++;
	return !*c && strchr(text, '=') && c - text <= SHIM_ANNOTATION_LEN;
}

/* Takes out --vgpu-standalone. */
static bool take_standalone(int *argc, char **argv, int i, struct option option, struct shim_args *args)
{
	args->standalone = take_own(argc, argv, i, option, "");
	return args->standalone && (!strcmp(args->standalone, "any") || !strcmp(args->standalone, "key"));
}

/* Takes out one more --vgpu-annotation. */
static bool take_annotation(int *argc, char **argv, int i, struct option option, struct shim_args *args)
{
	const char *value = take_own(argc, argv, i, option, "vgpu.io/");

	if (!value || !is_annotation(value) || args->annotation_count == SHIM_ANNOTATIONS_MAX)
		return false;
	args->annotations[args->annotation_count++] = value;
	return true;
}

/* The number of words that a global option of the runtime takes. */
static int width(struct option option, const char *next)
{
	if (option.value || !next || in(global_flags, option))
		return 1;
	if (in(global_values, option))
		return 2;
	return is_option(next) || is_subcommand(next) ? 1 : 2;
}

/* Records where and in which format the runtime logs. `next` is the word after the option. */
static void read_log(struct option option, const char *next, struct shim_args *args)
{
	const char *value = option.value ? option.value : next;

	if (is(option, "log"))
		args->log = value;
	else if (is(option, "log-format"))
		args->log_json = value && !strcmp(value, "json");
}

/* The index of the subcommand. argc: there is none. -1: an option of the shim is bad. */
static int find_subcommand(int *argc, char **argv, struct shim_args *args)
{
	int i = 1;

	while (i < *argc && is_option(argv[i])) {
		struct option option = split(argv[i]);
		const char **own = is(option, "vgpu-runtime")  ? &args->runtime
				   : is(option, "vgpu-config") ? &args->vgpu_config
							       : NULL;
		if (!strcmp(argv[i], "--"))
			return i + 1;
		if (own && !(*own = take_own(argc, argv, i, option, "/")))
			return -1;
		if (!own && is(option, "vgpu-annotation")) {
			if (!take_annotation(argc, argv, i, option, args))
				return -1;
		} else if (!own && is(option, "vgpu-standalone")) {
			if (!take_standalone(argc, argv, i, option, args))
				return -1;
		} else if (!own) {
			read_log(option, argv[i + 1], args);
			i += width(option, argv[i + 1]);
		}
	}
	return i;
}

/* Reads crun's short options, which may be joined (-db DIR) and have the value attached (-bDIR) or in the next word. */
static const char **short_value(const char *word, const char **value, struct shim_args *args)
{
	if (word[1] == '-')
		return NULL;
	for (const char *c = word + 1; *c; c++) {
		if (*c == 'b' || *c == 'f') {
			*value = c[1] ? c + 1 : NULL;
			return *c == 'b' ? &args->bundle : &args->config;
		}
		if (!strchr("d?h", *c))
			return NULL;
	}
	return NULL;
}

/* Looks at all words up to "--": options may follow the container's id, since runc sorts them to the front. */
static void read_create(char **word, struct shim_args *args)
{
	for (; *word && strcmp(*word, "--") != 0; word++) {
		struct option option;
		const char **target;

		if (!is_option(*word))
			continue;
		option = split(*word);
		target = is(option, "bundle") || is(option, "b")   ? &args->bundle
			 : is(option, "config") || is(option, "f") ? &args->config
								   : short_value(*word, &option.value, args);
		if (!target && !in(create_values, option))
			continue;
		if (!option.value && !(option.value = *++word))
			return;
		if (target)
			*target = option.value;
	}
}

int shim_args_read(int argc, char **argv, struct shim_args *args)
{
	int at;

	*args = (struct shim_args){.bundle = "."};
	at = find_subcommand(&argc, argv, args);
	if (at < 0)
		return -1;
	if (at < argc && (!strcmp(argv[at], "create") || !strcmp(argv[at], "run"))) {
		args->creates = true;
		read_create(argv + at + 1, args);
	}
	return argc;
}
