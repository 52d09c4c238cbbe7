/*
 * Implements bundle.h. All accesses go through a descriptor of the file's directory. The new file gets a temporary name
 * there and is renamed over config.json.
 */
#include "bundle.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "input.h"
#include "marker.h"
#include "report.h"
#include "spec_hooks.h"

#define PROGRAM "vgpu-runtime"

struct config_file {
	char path[PATH_MAX]; /* for messages, and to find the directory */
	const char *name;    /* relative to dir */
	int dir;
};

/* Splits the path and opens its directory. All later accesses are relative to that. */
static int open_directory(const struct shim_args *args, struct config_file *file)
{
	char directory[PATH_MAX];
	const char *bundle = args->bundle[0] ? args->bundle : ".";
	int n = args->config ? snprintf(file->path, sizeof file->path, "%s", args->config)
			     : snprintf(file->path, sizeof file->path, "%s/config.json", bundle);
	char *slash;

	if (n < 0 || (size_t)n >= sizeof file->path)
		return -1;
	slash = strrchr(file->path, '/');
	file->name = slash ? slash + 1 : file->path;
	if (slash)
		snprintf(directory, sizeof directory, "%.*s", (int)(slash - file->path + 1), file->path);
	file->dir = open(slash ? directory : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	return file->dir;
}

static bool refuse(const struct config_file *file, const char *expected, const char *found)
{
	report(PROGRAM,
	       "%s: expected %s, found %s; this container asks for a share of a GPU and is refused: "
	       "check the program that writes the bundle",
	       file->path, expected, found);
	return false;
}

static bool write_all(int fd, const char *at, size_t len)
{
	while (len) {
		ssize_t n = write(fd, at, len);
		if (n < 0 && errno != EINTR)
			return false;
		if (n > 0) {
			at += n;
			len -= (size_t)n;
		}
	}
	return true;
}

static bool write_edited(int fd, const struct input *document, const struct spec_edits *edits)
{
	size_t from = 0;

	for (size_t i = 0; i < edits->count; i++) {
		const struct spec_edit *edit = &edits->edit[i];
		if (!write_all(fd, document->at + from, edit->offset - from) || !write_all(fd, edit->text, edit->len))
			return false;
		from = edit->offset + edit->drop;
	}
	return write_all(fd, document->at + from, document->len - from);
}

/*
 * chown comes before chmod, since it clears the set-id bits. No fsync: every start of a container makes a new bundle.
 */
static bool fill(int fd, const struct input *document, const struct spec_edits *edits, const struct stat *st)
{
	return write_edited(fd, document, edits) && fchown(fd, st->st_uid, st->st_gid) == 0 &&
	       fchmod(fd, st->st_mode & 07777) == 0;
}

static bool replace_file(const struct config_file *file, const char *temporary, const struct input *document,
			 const struct spec_edits *edits, const struct stat *st)
{
	int fd = openat(file->dir, temporary, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
	bool done;
	int error;

	if (fd < 0)
		return false;
	done = fill(fd, document, edits, st);
	done = close(fd) == 0 && done && renameat(file->dir, temporary, file->dir, file->name) == 0;
	error = errno;
	if (!done)
		unlinkat(file->dir, temporary, 0);
	errno = error;
	return done;
}

/*
 * Blocks all signals, so that only SIGKILL can leave the temporary file behind. On failure they stay blocked: the
 * program then exits anyway, and a pending SIGXFSZ would kill it before it has printed its message.
 */
static bool replace(const struct config_file *file, const struct input *document, const struct spec_edits *edits,
		    const struct stat *st)
{
	char temporary[64];
	sigset_t all, before;

	snprintf(temporary, sizeof temporary, ".config.json.vgpu.%ld", (long)getpid());
	sigfillset(&all);
	sigprocmask(SIG_SETMASK, &all, &before);
	if (!replace_file(file, temporary, document, edits, st)) {
		report(PROGRAM, "%s: add vgpu-hook: %s; this container asks for a share of a GPU and is refused",
		       file->path, strerror(errno));
		return false;
	}
	sigprocmask(SIG_SETMASK, &before, NULL);
	return true;
}

/* The path of vgpu-hook, which is beside this program's file, whatever name the program was called by. */
static bool hook_path(char *path, size_t size)
{
	ssize_t n = readlink("/proc/self/exe", path, size - sizeof "/vgpu-hook");
	char *slash;

	if (n <= 0)
		return false;
	path[n] = 0;
	slash = strrchr(path, '/');
	if (!slash)
		return false;
	strcpy(slash, "/vgpu-hook");
	return true;
}

/* The words of the administrator's command line that the hook gets, too. There, no image and no tenant can write. */
static void pass_on(const struct shim_args *args, struct spec_hook *hook)
{
	if (args->vgpu_config) {
		hook->words[hook->count++] = "--config";
		hook->words[hook->count++] = args->vgpu_config;
	}
	if (args->standalone) {
		hook->words[hook->count++] = "--standalone";
		hook->words[hook->count++] = args->standalone;
	}
	for (size_t i = 0; i < args->annotation_count; i++) {
		hook->words[hook->count++] = "--annotation";
		hook->words[hook->count++] = args->annotations[i];
	}
}

static bool add_hooks(const struct config_file *file, const struct shim_args *args, const struct input *document,
		      const struct stat *st)
{
	char path[PATH_MAX];
	struct spec_hook hook = {.path = path};
	struct spec_edits edits;
	struct stat link;

	if (!hook_path(path, sizeof path)) {
		report(PROGRAM, "find vgpu-hook: readlink /proc/self/exe: %s; mount /proc", strerror(errno));
		return false;
	}
	pass_on(args, &hook);
	edits = spec_hooks_add(document, &hook);
	if (edits.why)
		return refuse(file, "hooks as in the OCI runtime specification", edits.why);
	if (!edits.count)
		return true;
	if (fstatat(file->dir, file->name, &link, AT_SYMLINK_NOFOLLOW) < 0 || S_ISLNK(link.st_mode))
		return refuse(file, "a regular file", "a symlink");
	return replace(file, document, &edits, st);
}

static bool judge(const struct config_file *file, const struct shim_args *args)
{
	struct input document;
	struct marks marks;
	struct stat st;

	if (input_read_file(file->dir, file->name, 0, &document, &st) != 0)
		return true; /* the runtime reports better what is wrong with the file */
	if (!marker_of_config(&document, &marks))
		return args->annotation_count || marker_is_anywhere(&document)
			       ? refuse(file, "one JSON object of at most " INPUT_TEXT(CONFIG_MAX_MIB) " MiB",
					marks.why)
			       : true;
	if (marker_is_sandbox(&marks, NULL) || (!marks.vgpu && !args->annotation_count))
		return true;
	return add_hooks(file, args, &document, &st);
}

bool bundle_add_hooks(const struct shim_args *args)
{
	struct config_file file;
	bool go_on;

	if (open_directory(args, &file) < 0)
		return true;
	go_on = judge(&file, args);
	close(file.dir);
	return go_on;
}
