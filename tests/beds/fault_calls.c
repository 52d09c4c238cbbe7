/*
 * Shows each system call of this process to a function before the kernel executes it. The function lets the call
 * happen (0), or makes it fail: with an errno instead of the call, or with a negative errno after the call has happened.
 *
 * A seccomp filter makes the kernel send SIGSYS for every call but the `exempt` ones. The handler asks the function, and
 * executes the call by fault_raw, whose page the filter leaves alone. Calls that the function itself makes are executed
 * at once. Filter and handler are inherited by fork; fork itself has to be exempt, because the C library blocks all
 * signals around it. A program that a child executes inherits the filter alone, so a process with such children names the
 * addresses, those of its C library, at which the calls that it is shown are made: the program's own lie elsewhere.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

typedef long (*decide_fn)(long number);

int fault_begin(decide_fn function, const int *exempt, int count);
int fault_begin_between(decide_fn function, const int *exempt, int count, uint64_t low, uint64_t high);
long fault_raw(long number, long a, long b, long c, long d, long e, long f);

#define PAGE 4096
#define EXEMPT_MAX 100

/* fault_raw begins a page of its own and nothing follows it there. */
#if defined(__x86_64__)
__asm__(".text\n.balign 4096\n.globl fault_raw\nfault_raw:\n"
	"mov %rdi, %rax\nmov %rsi, %rdi\nmov %rdx, %rsi\nmov %rcx, %rdx\nmov %r8, %r10\nmov %r9, %r8\n"
	"mov 8(%rsp), %r9\nsyscall\nret\n.balign 4096\n");
#define ARGUMENTS(r) r[REG_RDI], r[REG_RSI], r[REG_RDX], r[REG_R10], r[REG_R8], r[REG_R9]
#define RESULT(r) r[REG_RAX]
#define REGISTERS(context) ((context)->uc_mcontext.gregs)
#elif defined(__aarch64__)
__asm__(".text\n.balign 4096\n.globl fault_raw\nfault_raw:\n"
	"mov x8, x0\nmov x0, x1\nmov x1, x2\nmov x2, x3\nmov x3, x4\nmov x4, x5\nmov x5, x6\nsvc #0\nret\n.balign 4096\n");
#define ARGUMENTS(r) r[0], r[1], r[2], r[3], r[4], r[5]
#define RESULT(r) r[0]
#define REGISTERS(context) ((context)->uc_mcontext.regs)
#else
#error "no registers are known for this processor"
#endif

static decide_fn decide;
static int deciding;

/* The interpreter's own. */
struct _object;
int PyGILState_Ensure(void);
void PyGILState_Release(int state);
void PyErr_Fetch(struct _object **type, struct _object **value, struct _object **traceback);
void PyErr_Restore(struct _object *type, struct _object *value, struct _object *traceback);

/* A call may be made while an exception is set, such as the close of a directory that could not be read. */
static long decide_beside_exception(long number)
{
	struct _object *type, *value, *traceback;
	int state = PyGILState_Ensure();

	PyErr_Fetch(&type, &value, &traceback);
	long verdict = decide(number);
	PyErr_Restore(type, value, traceback);
	PyGILState_Release(state);
	return verdict;
}

static void on_call(int number, siginfo_t *info, void *context)
{
	long result, verdict = 0;
	int before = errno;

	(void)number;
	if (!deciding) {
		deciding = 1;
		verdict = decide_beside_exception(info->si_syscall);
		deciding = 0;
	}
	result = verdict > 0 ? -verdict : fault_raw(info->si_syscall, ARGUMENTS(REGISTERS((ucontext_t *)context)));
	RESULT(REGISTERS((ucontext_t *)context)) = verdict < 0 ? verdict : result;
	errno = before;
}

static int install(const int *exempt, int count, uint64_t low, uint64_t high)
{
	uint64_t page = (uint64_t)(uintptr_t)fault_raw;
	struct sock_filter code[16 + 2 * EXEMPT_MAX], *at = code;
	struct sock_fprog program = {.filter = code};

	*at++ = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS,
					     offsetof(struct seccomp_data, instruction_pointer) + 4);
	*at++ = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)(page >> 32), 0, 4);
	*at++ = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS,
					     offsetof(struct seccomp_data, instruction_pointer));
	*at++ = (struct sock_filter)BPF_STMT(BPF_ALU | BPF_AND | BPF_K, ~(uint32_t)(PAGE - 1));
	*at++ = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)page, 0, 1);
	*at++ = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
	if (high) {
		*at++ = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS,
						     offsetof(struct seccomp_data, instruction_pointer) + 4);
		*at++ = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)(low >> 32), 0, 3);
		*at++ = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS,
						     offsetof(struct seccomp_data, instruction_pointer));
		*at++ = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, (uint32_t)low, 0, 1);
		*at++ = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, (uint32_t)high, 0, 1);
		*at++ = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
	}
	*at++ = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
	for (int i = 0; i < count; i++) {
		*at++ = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)exempt[i], 0, 1);
		*at++ = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
	}
	*at++ = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP);
	program.len = (unsigned short)(at - code);
	return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
}

/* From now on `function` decides. 0, or -1 with errno. */
int fault_begin(decide_fn function, const int *exempt, int count)
{
	return fault_begin_between(function, exempt, count, 0, 0);
}

/* The same about the calls made between `low` and `high` or, without `high`, about all. */
int fault_begin_between(decide_fn function, const int *exempt, int count, uint64_t low, uint64_t high)
{
	struct sigaction action = {.sa_sigaction = on_call, .sa_flags = SA_SIGINFO | SA_NODEFER};

	decide = function;
	if (count > EXEMPT_MAX || sigaction(SIGSYS, &action, NULL) < 0)
		return -1;
	return install(exempt, count, low, high);
}
