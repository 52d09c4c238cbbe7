/*
 * Jumps to the real functions that libvcuda has no opinion on but exports by name, so that `gcc -lcuda` in a container
 * links against libvcuda: the names known at build (the lists in names/), one `TRAMPOLINE(name)` each in the generated
 * trampolines.def.
 *
 * A jump finds its function in the real library at its first call. One that this driver lacks answers as the API does
 * for what is not there; dlsym finds the name nevertheless, while cuGetProcAddress does not (it asks the driver).
 */
#ifndef VCUDA_TRAMPOLINES_H
#define VCUDA_TRAMPOLINES_H

/* The real library's symbol, or NULL. Given by driver/real_cuda.c and driver/real_nvml.c. */
void *real_symbol(const char *name);

/* Stands for each function that the driver lacks. */
int no_such_function(void);

#endif
