/* A second exported name for a function, at an address of its own: callers tell versions apart by the pointer. */
#ifndef SIM_TRAMPOLINE_H
#define SIM_TRAMPOLINE_H

#if defined(__x86_64__)
#define SIM_JUMP "endbr64\n\tjmp "
#define SIM_JUMP_END "@PLT"
#elif defined(__aarch64__)
#define SIM_JUMP "b "
#define SIM_JUMP_END ""
#else
#error "no trampoline for this architecture"
#endif

#define SIM_TRAMPOLINE(symbol, target) \
	__asm__(".pushsection .text\n" \
	        ".balign 16\n" \
	        ".globl " #symbol "\n" \
	        ".type " #symbol ", %function\n" \
	        #symbol ":\n\t" SIM_JUMP #target SIM_JUMP_END "\n" \
	        ".size " #symbol ", . - " #symbol "\n" \
	        ".popsection\n");

#endif
