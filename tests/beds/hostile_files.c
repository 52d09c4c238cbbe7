/*
 * Makes whoever opens or reads a tenant's file wait: the attacks of a container with CAP_SYS_ADMIN on the host's readers.
 *
 *     hostile_files [--enter PID] fanotify inode|mount|filesystem PATH    permission events that nobody answers
 *     hostile_files [--enter PID] fuse lookup|open|read DIRECTORY         a FUSE mount that answers up to this request
 *     hostile_files [--enter PID] lease read|write PATH                   a lease that is not given back
 *
 * It prints "ready" and lasts until it is killed; then the kernel lets every waiting process go. --enter: it works in the
 * mount namespace of PID, with the devices of the caller, as a program of a privileged container does. A FUSE mount has
 * one file, named `usage`, for any name that is looked up.
 */
#define _GNU_SOURCE
#include <err.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/fuse.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/fanotify.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

enum { FILE_NODE = 2, FILE_SIZE = 1 << 20, BUFFER = FUSE_MIN_READ_BUFFER + (1 << 17) };

static void ready(void)
{
    puts("ready");
    fflush(stdout);
}

static void deny_by_silence(const char *kind, const char *path)
{
    const unsigned int type = !strcmp(kind, "mount")        ? FAN_MARK_MOUNT
                              : !strcmp(kind, "filesystem") ? FAN_MARK_FILESYSTEM
                                                            : FAN_MARK_INODE;
    const int group = fanotify_init(FAN_CLASS_CONTENT | FAN_CLOEXEC, O_RDONLY);
    if (group < 0)
        err(1, "fanotify_init");
    const uint64_t events = FAN_OPEN_PERM | FAN_ACCESS_PERM | FAN_EVENT_ON_CHILD;
    if (fanotify_mark(group, FAN_MARK_ADD | type, events, AT_FDCWD, path))
        err(1, "fanotify_mark %s", path);
    ready();
    for (;;)
        pause();
}

static void answer(int device, uint64_t request, const void *data, size_t size, int error)
{
    char message[sizeof(struct fuse_out_header) + 256];
    struct fuse_out_header header = {.len = sizeof(header) + size, .error = error, .unique = request};
    memcpy(message, &header, sizeof(header));
    memcpy(message + sizeof(header), data, size);
    if (write(device, message, header.len) < 0 && errno != ENOENT)
        err(1, "answer");
}

static struct fuse_attr attributes(uint64_t node)
{
    const int directory = node == FUSE_ROOT_ID;
    return (struct fuse_attr){
        .ino = node,
        .size = directory ? 0 : FILE_SIZE,
        .mode = directory ? S_IFDIR | 0755 : S_IFREG | 0666,
        .nlink = 1,
    };
}

static void initialize(int device, const struct fuse_in_header *in)
{
    const struct fuse_init_in *asked = (const void *)(in + 1);
    struct fuse_init_out out = {.major = FUSE_KERNEL_VERSION, .minor = asked->minor, .max_write = 1 << 16};
    answer(device, in->unique, &out, sizeof(out), 0);
}

/* Answers one request; those of the kind at which the server stops, and later ones, have no answer. */
static void serve(int device, const struct fuse_in_header *in, int stop)
{
    struct fuse_entry_out entry = {.nodeid = FILE_NODE, .attr = attributes(FILE_NODE)};
    struct fuse_attr_out attr = {.attr = attributes(in->nodeid)};
    struct fuse_open_out open = {.fh = 1};
    switch (in->opcode) {
    case FUSE_INIT:
        initialize(device, in);
        return;
    case FUSE_LOOKUP:
        if (stop > FUSE_LOOKUP)
            answer(device, in->unique, &entry, sizeof(entry), 0);
        return;
    case FUSE_GETATTR:
        if (stop > FUSE_LOOKUP || in->nodeid == FUSE_ROOT_ID)
            answer(device, in->unique, &attr, sizeof(attr), 0);
        return;
    case FUSE_OPEN:
    case FUSE_OPENDIR:
        if (stop > FUSE_OPEN)
            answer(device, in->unique, &open, sizeof(open), 0);
        return;
    case FUSE_READ:
    case FUSE_FORGET:
    case FUSE_BATCH_FORGET:
        return;
    default:
        answer(device, in->unique, NULL, 0, -ENOSYS);
    }
}

static void hang_in_fuse(const char *kind, const char *directory, int device)
{
    static char buffer[BUFFER];
    const int stop = !strcmp(kind, "lookup") ? FUSE_LOOKUP : !strcmp(kind, "open") ? FUSE_OPEN : FUSE_READ;
    char options[128];
    snprintf(options, sizeof(options), "fd=%d,rootmode=40000,user_id=0,group_id=0,allow_other", device);
    if (mount("hostile", directory, "fuse", MS_NOSUID | MS_NODEV, options))
        err(1, "mount fuse on %s", directory);
    ready();
    for (;;) {
        const ssize_t size = read(device, buffer, sizeof(buffer));
        if (size < 0 && errno != EINTR && errno != ENOENT)
            err(1, "/dev/fuse");
        if (size >= (ssize_t)sizeof(struct fuse_in_header))
            serve(device, (const void *)buffer, stop);
    }
}

static void hold_lease(const char *kind, const char *path)
{
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        err(1, "%s", path);
    signal(SIGIO, SIG_IGN);
    if (fcntl(fd, F_SETLEASE, strcmp(kind, "write") ? F_RDLCK : F_WRLCK))
        err(1, "F_SETLEASE %s", path);
    ready();
    for (;;)
        pause();
}

static void enter(const char *pid)
{
    char path[64];
    snprintf(path, sizeof(path), "/proc/%s/ns/mnt", pid);
    const int namespace = open(path, O_RDONLY | O_CLOEXEC);
    if (namespace < 0 || setns(namespace, CLONE_NEWNS))
        err(1, "%s", path);
}

int main(int count, char **words)
{
    const int entering = count == 6 && !strcmp(words[1], "--enter");
    if (count != 4 && !entering)
        errx(2, "usage: hostile_files [--enter PID] fanotify|fuse|lease KIND PATH");
    const char **rest = (const char **)words + (entering ? 3 : 1);
    const int device = strcmp(rest[0], "fuse") ? -1 : open("/dev/fuse", O_RDWR | O_CLOEXEC);
    if (device < 0 && !strcmp(rest[0], "fuse"))
        err(1, "/dev/fuse");
    if (entering)
        enter(words[2]);
    if (!strcmp(rest[0], "fanotify"))
        deny_by_silence(rest[1], rest[2]);
    else if (!strcmp(rest[0], "fuse"))
        hang_in_fuse(rest[1], rest[2], device);
    else if (!strcmp(rest[0], "lease"))
        hold_lease(rest[1], rest[2]);
    errx(2, "expected fanotify, fuse or lease, found %s", rest[0]);
}
