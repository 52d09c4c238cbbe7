/*
 * The functions of glibc that NVIDIA's libraries and libvcuda use and that musl lacks, for a program linked with musl:
 * a small stand-in for gcompat, which Debian does not have.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/socket.h>

int __register_atfork(void (*prepare)(void), void (*parent)(void), void (*child)(void), void *handle)
{
	(void)handle;
	return pthread_atfork(prepare, parent, child);
}

void *dlvsym(void *handle, const char *name, const char *version)
{
	(void)version;
	return dlsym(handle, name);
}

void *dlmopen(long space, const char *file, int flags)
{
	(void)space;
	return dlopen(file, flags);
}

const char *gnu_get_libc_version(void)
{
	return "2.36";
}

void *__sched_cpualloc(size_t count)
{
	return calloc(1, (count + 63) / 64 * 8);
}

void __sched_cpufree(void *set)
{
	free(set);
}

int backtrace(void **frames, int count)
{
	(void)frames;
	(void)count;
	return 0;
}

struct cmsghdr *__cmsg_nxthdr(struct msghdr *message, struct cmsghdr *header)
{
	return CMSG_NXTHDR(message, header);
}
