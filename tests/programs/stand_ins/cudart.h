/*
 * The parts of the stand-in for CUDA's runtime know each other by this.
 */
#ifndef CUDART_H
#define CUDART_H

#define EXPORT __attribute__((visibility("default")))

/* The driver's function of this name in its form of CUDA 12.0; if it has none: one that fails. */
void *cudart_driver(const char *name);
/* Each makes the driver ready; the second one also makes the context of the thread's device current. A cudaError_t. */
int cudart_init(void);
int cudart_context(void);
/* Keeps an error for cudaGetLastError, and returns it. */
int cudart_result(int result);

/* A function of the driver with its type: DRIVER(cuMemAlloc)(&pointer, size). It is looked up once. */
#define DRIVER(name) \
	({ \
		static __typeof__(&name) found_; \
		if (!found_) \
			found_ = (__typeof__(&name))cudart_driver(#name); \
		found_; \
	})

#endif
