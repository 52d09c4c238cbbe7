"""The committed table of faults: each system call that the hook makes, and the errors that it gets in the tests.

A call that no row names makes the tests fail: somebody has to decide what may happen to it. `EXEMPT` are calls that no
test disturbs: memory, signals, clocks and the end of a process have no error that the hook could handle, and fork has a
wrapper of its own (fault_hook). After a failed close(2) the kernel has closed the descriptor nevertheless.
"""

from __future__ import annotations

READING = "EIO ENOMEM EINTR EACCES EPERM ENOENT"
OPENING = "EIO EMFILE ENFILE ENOMEM EINTR EPERM EACCES ENOENT ELOOP ENOSPC EROFS"
CHANGING = "ENOSPC EROFS EIO ENOMEM EPERM EDQUOT"

ERRNOS = {
    "access": READING,
    "alarm": "",
    "bpf": "EPERM ENOMEM ENOSPC EINVAL ENOENT ENOSYS",
    "close": "EIO EINTR",
    "connect": "ECONNREFUSED ENOENT EINTR",
    "dup": "EMFILE ENOMEM",
    "dup3": "EMFILE ENOMEM",
    "faccessat": READING,
    "faccessat2": READING,
    "fchmod": "EROFS EIO EPERM",
    "fchown": "EROFS EIO EPERM",
    "fcntl": "EMFILE ENOLCK EINTR EINVAL",
    "flock": "EINTR ENOLCK EIO",
    "fork": "EAGAIN ENOMEM",
    "fsconfig": "ENOMEM EINVAL EPERM ENOSYS",
    "fsmount": "ENOMEM EMFILE EPERM ENOSYS",
    "fsopen": "ENOMEM EMFILE EPERM ENOSYS ENODEV",
    "fstat": "EIO ENOMEM",
    "fstatfs": "EIO ENOMEM ENOSYS",
    "fsync": "EIO ENOSPC EROFS",
    "ftruncate": "EIO ENOSPC EPERM EROFS",
    "getdents64": "EIO ENOENT ENOMEM",
    "getsockopt": "EIO",
    "ioctl": "EIO ENOTTY",
    "lseek": "EIO EINVAL ESPIPE",
    "lstat": READING,
    "mkdir": CHANGING,
    "mkdirat": CHANGING,
    "mknod": CHANGING,
    "mknodat": CHANGING,
    "mount": "ENOMEM EPERM EIO ENOENT EINVAL EBUSY",
    "mount_setattr": "ENOMEM EPERM EINVAL ENOSYS",
    "move_mount": "ENOMEM EPERM EINVAL ENOENT ENOSYS",
    "newfstatat": READING,
    "open": OPENING,
    "openat": OPENING,
    "openat2": "EIO EMFILE ENOMEM EINTR EPERM ENOENT EAGAIN ENOSYS",
    "open_tree": "ENOMEM EMFILE EPERM ENOENT ENOSYS",
    "poll": "EINTR ENOMEM",
    "pipe2": "EMFILE ENFILE ENOMEM",
    "prctl": "EINVAL EPERM",
    "pread64": "EIO EINTR ENOMEM",
    "pwrite64": "ENOSPC EIO EINTR EDQUOT",
    "read": "EIO EINTR ENOMEM",
    "readlink": READING,
    "readlinkat": READING,
    "recvfrom": "ECONNRESET EINTR",
    "recvmsg": "ECONNRESET EINTR",
    "rename": CHANGING,
    "renameat": CHANGING,
    "renameat2": CHANGING,
    "rmdir": "EROFS EIO EPERM EBUSY",
    "sendmsg": "EPIPE EINTR",
    "sendto": "EPIPE EINTR",
    "setfsgid": "",
    "setfsuid": "",
    "setns": "EPERM ENOMEM EINVAL",
    "socket": "EMFILE ENOMEM EACCES",
    "stat": READING,
    "statfs": "EIO ENOMEM ENOSYS",
    "statx": READING,
    "symlink": CHANGING,
    "symlinkat": CHANGING,
    "umask": "",
    "umount2": "EBUSY EPERM EINVAL",
    "uname": "",
    "unlink": "EROFS EIO EPERM",
    "unlinkat": "EROFS EIO EPERM",
    "unshare": "EPERM ENOMEM",
    "utimensat": "EROFS EIO EPERM",
    "wait4": "EINTR ECHILD",
    "write": "ENOSPC EIO EINTR EPERM EDQUOT EFBIG",
}

#: Further calls of the services. Their faults are those of test_card_health, the same for all calls.
OF_SERVICES = (
    "epoll_create1", "epoll_ctl", "epoll_wait", "execve", "inotify_add_watch", "inotify_init1", "close_range",
)  # fmt: skip

EXEMPT = (
    "arch_prctl", "brk", "clock_getres", "clock_gettime", "clock_nanosleep", "clone", "clone3", "exit", "exit_group",
    "futex", "getegid", "geteuid", "getgid", "getpid", "getppid", "getrandom", "gettid", "gettimeofday", "getuid",
    "kill", "madvise", "mmap", "mprotect", "mremap", "munmap", "nanosleep", "prlimit64", "restart_syscall", "rseq",
    "rt_sigaction", "rt_sigprocmask", "rt_sigreturn", "sched_getaffinity", "sched_yield", "set_robust_list",
    "set_tid_address", "sigaltstack", "tgkill", "vfork",
)  # fmt: skip
