"""Numbers of the system calls that the sandbox allows, refuses or makes, for two architectures.

The numbers are the kernel's and never change; from 424 on they are the same on all architectures. -1 means
that the architecture has no such call. ``dios.host.confinement.policy`` decides which calls are allowed.
"""

from __future__ import annotations

import errno
import os
from typing import Final

AUDIT_ARCH: Final = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
"""The kernel's number of the architecture, which a filter sees with each system call."""

NEWEST: Final = 450
"""The highest number known when this table was written."""

X32_BIT: Final = 0x40000000
"""Set in the numbers of the x32 ABI, which has the audit architecture of x86_64."""

_COLUMN: Final = {"x86_64": 0, "aarch64": 1}

NUMBERS: Final = {
    # name: (x86_64, aarch64)
    "accept": (43, 202),
    "accept4": (288, 242),
    "access": (21, -1),
    "acct": (163, 89),
    "add_key": (248, 217),
    "alarm": (37, -1),
    "bind": (49, 200),
    "bpf": (321, 280),
    "arch_prctl": (158, -1),
    "brk": (12, 214),
    "capget": (125, 90),
    "capset": (126, 91),
    "chdir": (80, 49),
    "chmod": (90, -1),
    "chroot": (161, 51),
    "clock_getres": (229, 114),
    "clock_gettime": (228, 113),
    "clock_nanosleep": (230, 115),
    "clone": (56, 220),
    "clone3": (435, 435),
    "close": (3, 57),
    "close_range": (436, 436),
    "connect": (42, 203),
    "delete_module": (176, 106),
    "dup": (32, 23),
    "dup2": (33, -1),
    "dup3": (292, 24),
    "epoll_create1": (291, 20),
    "epoll_ctl": (233, 21),
    "epoll_pwait": (281, 22),
    "epoll_pwait2": (441, 441),
    "epoll_wait": (232, -1),
    "eventfd2": (290, 19),
    "execve": (59, 221),
    "execveat": (322, 281),
    "exit": (60, 93),
    "exit_group": (231, 94),
    "faccessat": (269, 48),
    "faccessat2": (439, 439),
    "fallocate": (285, 47),
    "fanotify_init": (300, 262),
    "fchmod": (91, 52),
    "fchmodat": (268, 53),
    "fchown": (93, 55),
    "fcntl": (72, 25),
    "fdatasync": (75, 83),
    "finit_module": (313, 273),
    "flock": (73, 32),
    "fork": (57, -1),
    "fsconfig": (431, 431),
    "fsetxattr": (190, 7),
    "fsmount": (432, 432),
    "fsopen": (430, 430),
    "fspick": (433, 433),
    "fstat": (5, 80),
    "fstatfs": (138, 44),
    "fsync": (74, 82),
    "ftruncate": (77, 46),
    "futex": (202, 98),
    "futex_waitv": (449, 449),
    "getcpu": (309, 168),
    "getcwd": (79, 17),
    "getdents64": (217, 61),
    "getegid": (108, 177),
    "geteuid": (107, 175),
    "getgid": (104, 176),
    "getgroups": (115, 158),
    "getitimer": (36, 102),
    "getpeername": (52, 205),
    "getpgid": (121, 155),
    "getpgrp": (111, -1),
    "getpid": (39, 172),
    "getppid": (110, 173),
    "getrandom": (318, 278),
    "getresgid": (120, 150),
    "getresuid": (118, 148),
    "getrlimit": (97, 163),
    "getrusage": (98, 165),
    "getsid": (124, 156),
    "getsockname": (51, 204),
    "getsockopt": (55, 209),
    "gettid": (186, 178),
    "gettimeofday": (96, 169),
    "getuid": (102, 174),
    "init_module": (175, 105),
    "inotify_init1": (294, 26),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "io_uring_setup": (425, 425),
    "ioctl": (16, 29),
    "ioperm": (173, -1),
    "iopl": (172, -1),
    "kcmp": (312, 272),
    "kexec_file_load": (320, 294),
    "kexec_load": (246, 104),
    "keyctl": (250, 219),
    "kill": (62, 129),
    "landlock_add_rule": (445, 445),
    "landlock_create_ruleset": (444, 444),
    "landlock_restrict_self": (446, 446),
    "linkat": (265, 37),
    "listen": (50, 201),
    "listxattr": (194, 11),
    "llistxattr": (195, 12),
    "lookup_dcookie": (212, 18),
    "lseek": (8, 62),
    "lstat": (6, -1),
    "madvise": (28, 233),
    "map_shadow_stack": (453, 453),
    "membarrier": (324, 283),
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "mkdir": (83, -1),
    "mkdirat": (258, 34),
    "mmap": (9, 222),
    "modify_ldt": (154, -1),
    "mount": (165, 40),
    "mount_setattr": (442, 442),
    "move_mount": (429, 429),
    "mprotect": (10, 226),
    "mq_open": (240, 180),
    "mremap": (25, 216),
    "mseal": (462, 462),
    "msgget": (68, 186),
    "msync": (26, 227),
    "munmap": (11, 215),
    "name_to_handle_at": (303, 264),
    "nanosleep": (35, 101),
    "newfstatat": (262, 79),
    "open": (2, -1),
    "open_by_handle_at": (304, 265),
    "open_tree": (428, 428),
    "openat": (257, 56),
    "openat2": (437, 437),
    "pause": (34, -1),
    "perf_event_open": (298, 241),
    "personality": (135, 92),
    "pidfd_getfd": (438, 438),
    "pidfd_open": (434, 434),
    "pidfd_send_signal": (424, 424),
    "pipe": (22, -1),
    "pipe2": (293, 59),
    "pivot_root": (155, 41),
    "poll": (7, -1),
    "ppoll": (271, 73),
    "prctl": (157, 167),
    "pread64": (17, 67),
    "preadv": (295, 69),
    "prlimit64": (302, 261),
    "process_madvise": (440, 440),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "pselect6": (270, 72),
    "ptrace": (101, 117),
    "pwrite64": (18, 68),
    "pwritev": (296, 70),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "read": (0, 63),
    "readlink": (89, -1),
    "readlinkat": (267, 78),
    "readv": (19, 65),
    "reboot": (169, 142),
    "recvfrom": (45, 207),
    "recvmsg": (47, 212),
    "rename": (82, -1),
    "renameat": (264, 38),
    "renameat2": (316, 276),
    "request_key": (249, 218),
    "restart_syscall": (219, 128),
    "rmdir": (84, -1),
    "rseq": (334, 293),
    "rt_sigaction": (13, 134),
    "rt_sigpending": (127, 136),
    "rt_sigprocmask": (14, 135),
    "rt_sigqueueinfo": (129, 138),
    "rt_sigreturn": (15, 139),
    "rt_sigsuspend": (130, 133),
    "rt_sigtimedwait": (128, 137),
    "rt_tgsigqueueinfo": (297, 240),
    "sched_getaffinity": (204, 123),
    "sched_getattr": (315, 275),
    "sched_setaffinity": (203, 122),
    "sched_setattr": (314, 274),
    "sched_yield": (24, 124),
    "seccomp": (317, 277),
    "select": (23, -1),
    "semget": (64, 190),
    "sendmmsg": (307, 269),
    "sendmsg": (46, 211),
    "sendto": (44, 206),
    "set_robust_list": (273, 99),
    "set_tid_address": (218, 96),
    "setgroups": (116, 159),
    "sethostname": (170, 161),
    "setitimer": (38, 103),
    "setns": (308, 268),
    "setresgid": (119, 149),
    "setresuid": (117, 147),
    "setrlimit": (160, 164),
    "setsid": (112, 157),
    "setsockopt": (54, 208),
    "shmget": (29, 194),
    "shutdown": (48, 210),
    "sigaltstack": (131, 132),
    "socket": (41, 198),
    "socketpair": (53, 199),
    "stat": (4, -1),
    "statfs": (137, 43),
    "statx": (332, 291),
    "swapoff": (168, 225),
    "swapon": (167, 224),
    "symlinkat": (266, 36),
    "sysinfo": (99, 179),
    "syslog": (103, 116),
    "tgkill": (234, 131),
    "time": (201, -1),
    "times": (100, 153),
    "tkill": (200, 130),
    "truncate": (76, 45),
    "umask": (95, 166),
    "umount2": (166, 39),
    "uname": (63, 160),
    "unlink": (87, -1),
    "unlinkat": (263, 35),
    "unshare": (272, 97),
    "userfaultfd": (323, 282),
    "utimensat": (280, 88),
    "vfork": (58, -1),
    "write": (1, 64),
    "writev": (20, 66),
}


def machine() -> str:
    """Return this machine's architecture, by its name in the tables."""
    return os.uname().machine


def supported() -> bool:
    """Return True if the tables have this machine; otherwise it has no filter and no raw calls."""
    return machine() in _COLUMN


def number_of(name: str) -> int:
    """Return the number of a call on this machine. Raise ``OSError`` with ENOSYS if it has none."""
    column = _COLUMN.get(machine())
    number = -1 if column is None else NUMBERS[name][column]
    if number < 0:
        raise OSError(errno.ENOSYS, f"{name}: {os.strerror(errno.ENOSYS)}")
    return number


def name_of(number: int) -> str:
    """Return the name of a call by its number on this machine, or a text with the number."""
    column = _COLUMN.get(machine())
    for name, row in NUMBERS.items():
        if column is not None and row[column] == number:
            return name
    return f"call number {number}"


def described(architecture: str, number: str) -> str:
    """Return a text for a call that the kernel's log names by its audit architecture in hex, and its number.

    The numbers of another architecture are those of other calls, so they have no name here.
    """
    try:
        known = int(architecture, 16) == AUDIT_ARCH.get(machine())
        call = int(number)
    except ValueError:
        return ""
    if not known:
        return f"call number {call} of another architecture ({architecture})"
    if call & X32_BIT and machine() == "x86_64":
        return f"call number {call & ~X32_BIT} of the x32 ABI"
    return name_of(call)
