/*
 * Macros that give a function a second exported name at an address of its own: callers distinguish versions of an entry
 * point by its address. One variant replaces a NULL stream by the thread's own default stream. Written in assembly for
 * x86-64 and AArch64; the names are listed in cuda/entry/entries.def and in the
 * drivers' lists (state/other_names.c).
 */
#ifndef SIM_TRAMPOLINE_H
#define SIM_TRAMPOLINE_H

#if defined(__x86_64__)
#define SIM_ENTER "endbr64\n\t"
#define SIM_JUMP "jmp "
#define SIM_JUMP_END "@PLT"
/* Argument 8 of a launch is the third one on the stack, behind the return address. */
#define SIM_ARGUMENT_0 "%rdi"
#define SIM_ARGUMENT_1 "%rsi"
#define SIM_ARGUMENT_2 "%rdx"
#define SIM_ARGUMENT_3 "%rcx"
#define SIM_ARGUMENT_4 "%r8"
#define SIM_ARGUMENT_5 "%r9"
#define SIM_ARGUMENT_8 "24(%rsp)"
#define SIM_OWN_STREAM(argument) \
	"cmpq $0, " SIM_ARGUMENT_##argument "\n\tjne 1f\n\tmovq $2, " SIM_ARGUMENT_##argument "\n1:\t"
#elif defined(__aarch64__)
#define SIM_ENTER ""
#define SIM_JUMP "b "
#define SIM_JUMP_END ""
#define SIM_IN_REGISTER(name) "cbnz " name ", 1f\n\tmov " name ", #2\n1:\t"
#define SIM_OWN_STREAM_0 SIM_IN_REGISTER("x0")
#define SIM_OWN_STREAM_1 SIM_IN_REGISTER("x1")
#define SIM_OWN_STREAM_2 SIM_IN_REGISTER("x2")
#define SIM_OWN_STREAM_3 SIM_IN_REGISTER("x3")
#define SIM_OWN_STREAM_4 SIM_IN_REGISTER("x4")
#define SIM_OWN_STREAM_5 SIM_IN_REGISTER("x5")
#define SIM_OWN_STREAM_8 "ldr x16, [sp]\n\tcbnz x16, 1f\n\tmov x16, #2\n\tstr x16, [sp]\n1:\t"
#define SIM_OWN_STREAM(argument) SIM_OWN_STREAM_##argument
#else
#error "no trampoline for this architecture"
#endif

#define SIM_TRAMPOLINE_BOUND(symbol, binding, target, prologue) \
	__asm__(".pushsection .text\n" \
		".balign 16\n" binding " " #symbol "\n" \
		".type " #symbol ", %function\n" #symbol ":\n\t" SIM_ENTER prologue SIM_JUMP #target SIM_JUMP_END "\n" \
		".size " #symbol ", . - " #symbol "\n" \
		".popsection\n");

#define SIM_TRAMPOLINE_WITH(symbol, target, prologue) SIM_TRAMPOLINE_BOUND(symbol, ".globl", target, prologue)
#define SIM_TRAMPOLINE(symbol, target) SIM_TRAMPOLINE_WITH(symbol, target, "")
/* As above, but a NULL stream (argument number `argument`) becomes the thread's own default stream. */
#define SIM_STREAM_TRAMPOLINE(symbol, target, argument) SIM_TRAMPOLINE_WITH(symbol, target, SIM_OWN_STREAM(argument))
/* A name that gives way to a function with that name, if the library has one. */
#define SIM_WEAK_TRAMPOLINE(symbol, target) SIM_TRAMPOLINE_BOUND(symbol, ".weak", target, "")

#endif
