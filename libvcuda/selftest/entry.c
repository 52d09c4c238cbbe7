/*
 * The program's entry, instead of the compiler's: that of a new distribution needs a new glibc (__libc_start_main of
 * 2.34). So the program runs wherever the driver does, as libvcuda does (src/base/glibc_floor.h).
 */
#include <stddef.h>
#include <stdint.h>

int main(int count, char **arguments);
int __libc_start_main(int (*program)(int, char **), int count, char **arguments, void (*init)(void), void (*fini)(void),
		      void (*loaders_fini)(void), void *stack);

#if defined(__x86_64__)
__asm__(".symver __libc_start_main, __libc_start_main@GLIBC_2.2.5");
__asm__(".globl _start\n_start:\n\txor %ebp, %ebp\n\tmov %rsp, %rdi\n\tmov %rdx, %rsi\n\tand $-16, %rsp\n"
	"\tcall start_program\n\thlt\n");
#elif defined(__aarch64__)
__asm__(".symver __libc_start_main, __libc_start_main@GLIBC_2.17");
__asm__(".globl _start\n_start:\n\tmov x29, #0\n\tmov x30, #0\n\tmov x1, x0\n\tmov x0, sp\n"
	"\tbl start_program\n\tbrk #0\n");
#endif

/* The kernel leaves the count of arguments on the stack, and the arguments after it. */
__attribute__((used)) static void start_program(uint64_t *stack, void (*loaders_fini)(void))
{
	__libc_start_main(main, (int)*stack, (char **)(stack + 1), NULL, NULL, loaders_fini, stack);
}
