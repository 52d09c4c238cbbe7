/* See driver/trampolines.h. A jump must not change an argument register, so the jumps are assembly. */
#include "driver/trampolines.h"

#include <stdint.h>
#include <string.h>

#include "driver/real_library.h"

/* One name after the other: the loader would relocate a table of pointers in every process. */
static const char names[] =
#define TRAMPOLINE(name) #name "\0"
#include "trampolines.def"
#undef TRAMPOLINE
	;

/* The targets of the jumps. NULL: the jump goes to the resolver, which has not yet found the target. */
extern void *trampolines_targets[];

int trampolines_no_such_function(void)
{
	return VCUDA_NO_SUCH_FUNCTION;
}

static const char *name_of(uint64_t index)
{
	const char *name = names;

	while (index--)
		name += strlen(name) + 1;
	return name;
}

/* The assembly calls this once for each function or, in a race, a few times. */
__attribute__((used, visibility("hidden"))) void *trampolines_resolve(uint64_t index)
{
	void *target = real_library_symbol(name_of(index));

	if (!target)
		target = (void *)trampolines_no_such_function;
	__atomic_store_n(&trampolines_targets[index], target, __ATOMIC_RELEASE);
	return target;
}

#if defined(__x86_64__)

/* Saves the integer and vector argument registers, and rax, the number of the latter for variadic functions. */
__asm__(".text\n"
	".hidden trampolines_resolver\n"
	".type trampolines_resolver, @function\n"
	"trampolines_resolver:\n"
	"	.cfi_startproc\n"
	"	push %rbp\n"
	"	.cfi_def_cfa_offset 16\n"
	"	.cfi_offset rbp, -16\n"
	"	mov %rsp, %rbp\n"
	"	.cfi_def_cfa_register rbp\n"
	"	and $-16, %rsp\n"
	"	sub $192, %rsp\n"
	"	mov %rdi, (%rsp)\n	mov %rsi, 8(%rsp)\n	mov %rdx, 16(%rsp)\n	mov %rcx, 24(%rsp)\n"
	"	mov %r8, 32(%rsp)\n	mov %r9, 40(%rsp)\n	mov %rax, 48(%rsp)\n"
	"	movups %xmm0, 64(%rsp)\n	movups %xmm1, 80(%rsp)\n	movups %xmm2, 96(%rsp)\n"
	"	movups %xmm3, 112(%rsp)\n	movups %xmm4, 128(%rsp)\n	movups %xmm5, 144(%rsp)\n"
	"	movups %xmm6, 160(%rsp)\n	movups %xmm7, 176(%rsp)\n"
	"	mov %r11, %rdi\n"
	"	call trampolines_resolve\n"
	"	mov %rax, %r11\n"
	"	mov (%rsp), %rdi\n	mov 8(%rsp), %rsi\n	mov 16(%rsp), %rdx\n	mov 24(%rsp), %rcx\n"
	"	mov 32(%rsp), %r8\n	mov 40(%rsp), %r9\n	mov 48(%rsp), %rax\n"
	"	movups 64(%rsp), %xmm0\n	movups 80(%rsp), %xmm1\n	movups 96(%rsp), %xmm2\n"
	"	movups 112(%rsp), %xmm3\n	movups 128(%rsp), %xmm4\n	movups 144(%rsp), %xmm5\n"
	"	movups 160(%rsp), %xmm6\n	movups 176(%rsp), %xmm7\n"
	"	leave\n"
	"	.cfi_def_cfa rsp, 8\n"
	"	jmp *%r11\n"
	"	.cfi_endproc\n"
	".size trampolines_resolver, . - trampolines_resolver\n");

#define JUMP(name, index) \
	".globl " name "\n" \
	".type " name ", @function\n" name ":\n" \
	"	mov trampolines_targets + 8 * (" index ")(%rip), %r11\n" \
	"	test %r11, %r11\n" \
	"	je 1f\n" \
	"	jmp *%r11\n" \
	"1:	mov $" index ", %r11d\n" \
	"	jmp trampolines_resolver\n" \
	".size " name ", . - " name "\n"

#elif defined(__aarch64__)

__asm__(".text\n"
	".hidden trampolines_resolver\n"
	".type trampolines_resolver, %function\n"
	"trampolines_resolver:\n"
	"	.cfi_startproc\n"
	"	stp x29, x30, [sp, #-224]!\n"
	"	.cfi_def_cfa_offset 224\n"
	"	.cfi_offset 29, -224\n"
	"	.cfi_offset 30, -216\n"
	"	mov x29, sp\n"
	"	stp x0, x1, [sp, #16]\n	stp x2, x3, [sp, #32]\n	stp x4, x5, [sp, #48]\n	stp x6, x7, [sp, #64]\n"
	"	str x8, [sp, #80]\n"
	"	stp q0, q1, [sp, #96]\n	stp q2, q3, [sp, #128]\n	stp q4, q5, [sp, #160]\n	stp q6, q7, [sp, #192]\n"
	"	mov x0, x17\n"
	"	bl trampolines_resolve\n"
	"	mov x16, x0\n"
	"	ldp x0, x1, [sp, #16]\n	ldp x2, x3, [sp, #32]\n	ldp x4, x5, [sp, #48]\n	ldp x6, x7, [sp, #64]\n"
	"	ldr x8, [sp, #80]\n"
	"	ldp q0, q1, [sp, #96]\n	ldp q2, q3, [sp, #128]\n	ldp q4, q5, [sp, #160]\n	ldp q6, q7, [sp, #192]\n"
	"	ldp x29, x30, [sp], #224\n"
	"	.cfi_def_cfa_offset 0\n"
	"	br x16\n"
	"	.cfi_endproc\n"
	".size trampolines_resolver, . - trampolines_resolver\n");

#define JUMP(name, index) \
	".globl " name "\n" \
	".type " name ", %function\n" name ":\n" \
	"	adrp x16, trampolines_targets + 8 * (" index ")\n" \
	"	ldr x16, [x16, #:lo12:trampolines_targets + 8 * (" index ")]\n" \
	"	cbz x16, 1f\n" \
	"	br x16\n" \
	"1:	mov x17, #" index "\n" \
	"	b trampolines_resolver\n" \
	".size " name ", . - " name "\n"

#else
#error "no trampolines for this processor"
#endif

/*
 * The table, and the jumps in the order of the names. The table begins as zeros: the loader would relocate pointers
 * in it in every process.
 */
__asm__(".bss\n"
	".balign 8\n"
	".hidden trampolines_targets\n"
	"trampolines_targets:\n"
#define TRAMPOLINE(name) "	.skip 8\n"
#include "trampolines.def"
#undef TRAMPOLINE
	".text\n"
	".set trampolines_index, 0\n"
#define TRAMPOLINE(name) JUMP(#name, "trampolines_index") ".set trampolines_index, trampolines_index + 1\n"
#include "trampolines.def"
#undef TRAMPOLINE
);
