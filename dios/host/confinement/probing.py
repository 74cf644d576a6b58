"""The attempts behind ``dios.host.confinement.mechanisms``: each uses a mechanism like the start of a task.

Call them only in a process that ends right after, because most attempts cannot be undone.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import select
import signal
import socket
from collections.abc import Callable
from functools import partial

from dios.host.confinement import (
    cgroups,
    landlock,
    linux_calls,
    namespaces,
    policy,
    privileges,
    syscall_numbers,
    view,
)
from dios.host.confinement.notifications import FORKS, Listener
from dios.host.confinement.seccomp import SeccompFilter, program
from dios.transport.unix.descriptors import refuse_descriptors


def attempts() -> dict[str, Callable[[], str]]:
    """Return every attempt by the mechanism's name; each returns a detail or raises ``OSError``."""
    inner = {name: partial(_namespace, flag) for name, flag in namespaces.FLAGS.items()}
    return {
        **inner,
        "mount": _view,
        "no_new_privs": _no_new_privs,
        "landlock": _landlock,
        "seccomp": _seccomp,
        "memfd_seals": _memfd_seals,
        "pidfd": _pidfd,
        "cgroup_memory": partial(cgroups.attempt, "memory"),
        "cgroup_pids": partial(cgroups.attempt, "pids"),
        "passrights": _passrights,
        FORKS: _listeners,
    }


def _as_zygote(flags: int) -> None:
    """Change to the zygote's identity: unprivileged, or with one capability if root started the node."""
    if privileges.may_mount():
        if flags:
            linux_calls.syscall("unshare", flags)
        return
    if os.geteuid() == 0:
        privileges.become_unprivileged()
    view.enter_user_namespace(flags)


def _namespace(flag: int) -> str:
    _as_zygote(0)
    if os.geteuid() == 0:
        privileges.become_unprivileged(privileges.KEPT_BY_THE_ZYGOTE)
    pid, pidfd = linux_calls.clone3(flag | linux_calls.CLONE_NEWUSER)
    if pid == 0:
        os._exit(0)
    os.close(pidfd)
    os.waitpid(pid, 0)
    return "clone3"


def _view() -> str:
    _as_zygote(linux_calls.CLONE_NEWNS)
    trees = [os.path.dirname(os.path.abspath(os.__file__))]  # noqa: PTH100, PTH120 - no pathlib in the probe
    view.enter(view.parts_of(trees))
    names = set(os.listdir("/"))  # noqa: PTH208 - the same
    devices = set(os.listdir("/dev")) if "dev" in names else set()  # noqa: PTH208 - the same
    if names & {"proc", "sys", "etc"} or devices - {os.path.basename(view.NULL)}:  # noqa: PTH119 - the same
        raise OSError("the old root is still visible")
    return _namespace_inside()


def _namespace_inside() -> str:
    if os.geteuid() == 0:
        privileges.become_unprivileged(privileges.KEPT_BY_THE_ZYGOTE)
    pid, pidfd = linux_calls.clone3(linux_calls.CLONE_NEWUSER | linux_calls.CLONE_NEWNS)
    if pid == 0:
        os._exit(0)
    os.close(pidfd)
    os.waitpid(pid, 0)
    return "read-only view of the library"


def _no_new_privs() -> str:
    privileges.no_new_privileges()
    if linux_calls.prctl(linux_calls.PR_GET_NO_NEW_PRIVS) != 1:
        raise OSError("the kernel did not keep no_new_privs")
    return "prctl"


def _landlock() -> str:
    rules = landlock.ruleset(["/"])
    privileges.no_new_privileges()
    landlock.restrict_self(rules)
    return f"ABI {landlock.abi()}"


def _seccomp() -> str:
    code = SeccompFilter(program(os.getpid()))
    privileges.no_new_privileges()
    code.install()
    try:
        os.close(os.open("/", os.O_RDWR | os.O_TMPFILE))
    except PermissionError:
        return "filter"
    raise OSError("the filter did not refuse a call")


def _memfd_seals() -> str:
    memory = os.memfd_create("probe", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(memory, mmap.PAGESIZE)
    fcntl.fcntl(
        memory,
        fcntl.F_ADD_SEALS,
        fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL,
    )
    try:
        os.write(memory, b"x")
    except PermissionError:
        return "sealed memory cannot be written"
    raise OSError("a sealed memfd was written")


def _pidfd() -> str:
    own = os.pidfd_open(os.getpid())
    signal.pidfd_send_signal(own, signal.Signals.SIGCONT)
    os.close(own)
    return "pidfd_open, pidfd_send_signal"


def _passrights() -> str:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    if not refuse_descriptors(theirs):
        raise OSError("the kernel has no SO_PASSRIGHTS (Linux 6.16)")
    try:
        socket.send_fds(ours, [b"x"], [ours.fileno()])
    except PermissionError:
        return "the kernel refuses descriptors at the sender"
    raise OSError("the kernel passed a descriptor that was to be refused")


def _listeners() -> str:
    """Let a child ask before it forks, give it a descriptor, and answer, like the supervisor of sessions."""
    _as_zygote(linux_calls.CLONE_NEWNS | linux_calls.CLONE_NEWNET | linux_calls.CLONE_NEWIPC)
    tid_address = linux_calls.tid_address()
    if not tid_address:
        raise OSError("the kernel does not report the address of a thread's id (PR_GET_TID_ADDRESS)")
    code = SeccompFilter(program(memory_is_counted=True, has_folder=True, for_forkable=True))
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        _fork_when_permitted(code, theirs, tid_address)
    pidfd = os.pidfd_open(pid)
    numbers = ours.recv(100)
    if not numbers:
        raise OSError("the kernel has no filters with such listeners (Linux 5.19)")
    listener = Listener(linux_calls.syscall("pidfd_getfd", pidfd, int(numbers), 0))
    ours.send(b"g")
    forks = syscall_numbers.number_of("clone")
    poll = select.poll()
    poll.register(listener, select.POLLIN)
    for _ in range(2):
        # Without a limit of time: the listener hangs up when no process with its filter is left.
        if not any(event & select.POLLIN for _, event in poll.poll()):
            break
        question = listener.receive()
        if question is None:
            break
        if question.number == forks:
            listener.permit(question)
        else:
            listener.give(question, ours.fileno(), 9)
            listener.answer(question, 0)
    if os.waitpid(pid, 0)[1]:
        raise OSError("a process could not fork itself with the permission of a listener")
    return "a listener decides about forks"


def _fork_when_permitted(code: SeccompFilter, link: socket.socket, tid_address: int) -> None:
    status = 1
    try:
        privileges.no_new_privileges()
        listener = code.install_with_listener()
        os.write(link.fileno(), str(listener).encode())
        os.read(link.fileno(), 1)
        if linux_calls.clone_sibling(policy.CLONE_OF_FORKS, tid_address) == 0:
            os.setsid()
            os.fstat(9)
        status = 0
    finally:
        os._exit(status)
