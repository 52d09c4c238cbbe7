/*
 * The oldest symbol versions of glibc, to which libvcuda binds. A library that was built on a new distribution then
 * loads in containers with an old glibc (2.17 and newer), as the real driver's libraries do. The build includes this
 * header before every source file.
 *
 * Belongs here: functions of which glibc has two versions. glibc 2.34 moved these functions into libc.so.6 under a new
 * version and kept the old one. An older loader finds the old version in libpthread.so.0 and libdl.so.2, on which the
 * real driver depends.
 */
#ifndef VCUDA_GLIBC_FLOOR_H
#define VCUDA_GLIBC_FLOOR_H

#if defined(__x86_64__)
__asm__(".symver dlopen, dlopen@GLIBC_2.2.5");
__asm__(".symver dlsym, dlsym@GLIBC_2.2.5");
__asm__(".symver dlerror, dlerror@GLIBC_2.2.5");
__asm__(".symver pthread_once, pthread_once@GLIBC_2.2.5");
__asm__(".symver pthread_create, pthread_create@GLIBC_2.2.5");
__asm__(".symver pthread_mutex_trylock, pthread_mutex_trylock@GLIBC_2.2.5");
__asm__(".symver pthread_sigmask, pthread_sigmask@GLIBC_2.2.5");
__asm__(".symver pthread_attr_setstacksize, pthread_attr_setstacksize@GLIBC_2.2.5");
__asm__(".symver pthread_rwlock_init, pthread_rwlock_init@GLIBC_2.2.5");
__asm__(".symver pthread_rwlock_rdlock, pthread_rwlock_rdlock@GLIBC_2.2.5");
__asm__(".symver pthread_rwlock_wrlock, pthread_rwlock_wrlock@GLIBC_2.2.5");
__asm__(".symver pthread_rwlock_unlock, pthread_rwlock_unlock@GLIBC_2.2.5");
#elif defined(__aarch64__)
__asm__(".symver dlopen, dlopen@GLIBC_2.17");
__asm__(".symver dlsym, dlsym@GLIBC_2.17");
__asm__(".symver dlerror, dlerror@GLIBC_2.17");
__asm__(".symver pthread_once, pthread_once@GLIBC_2.17");
__asm__(".symver pthread_create, pthread_create@GLIBC_2.17");
__asm__(".symver pthread_mutex_trylock, pthread_mutex_trylock@GLIBC_2.17");
__asm__(".symver pthread_sigmask, pthread_sigmask@GLIBC_2.17");
__asm__(".symver pthread_attr_setstacksize, pthread_attr_setstacksize@GLIBC_2.17");
__asm__(".symver pthread_rwlock_init, pthread_rwlock_init@GLIBC_2.17");
__asm__(".symver pthread_rwlock_rdlock, pthread_rwlock_rdlock@GLIBC_2.17");
__asm__(".symver pthread_rwlock_wrlock, pthread_rwlock_wrlock@GLIBC_2.17");
__asm__(".symver pthread_rwlock_unlock, pthread_rwlock_unlock@GLIBC_2.17");
__asm__(".symver pthread_setcancelstate, pthread_setcancelstate@GLIBC_2.17");
#endif

#endif
