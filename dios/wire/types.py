"""The enumerations that both sides of the wire share: types, rights, levels and flags of the thesis.

A number is never re-used with another meaning. ``dios.wire.messages`` has the messages.
"""

from __future__ import annotations

import enum


class Named(enum.IntEnum):
    """A number on the wire that is shown as a word."""

    def __str__(self) -> str:
        return self.name.lower()


class ObjectType(Named):
    """Table 4.1."""

    DURABLE_BLOB = 1
    PRIVMEM_BLOB = 2
    SHMEM_BLOB = 3
    TIMER_BLOB = 4
    SHMEM_STREAM = 5
    UDP_STREAM = 6
    TCP_STREAM = 7
    TCP_ACCEPT_STREAM = 8
    CONSOLE_STREAM = 9
    GROUP = 10
    TASK = 11
    DURABLE_STREAM = 12  # not in the thesis: a log on disk whose readers keep their own positions
    NETWORK = 13  # not in the thesis: a task that may write it may create network objects


class Permission(enum.IntFlag):
    """The rights of a reference; resolution gives ALL, delegation only removes (§4.3.3).

    DECLASSIFY is not among ALL: sessions of the owner of an object's tags get it, and delegate it on purpose.
    """

    NONE = 0
    READ = 1
    WRITE = 2
    EXECUTE = 4
    DELEGATE = 8
    DELETE = 16
    ALL = 31
    DECLASSIFY = 32  # not in the thesis: the holder may write what has the object's tags without them
    EVERY = 63


class Persistence(Named):
    """The lifetime of a physical object: until its node ends, or beyond a restart (§3.6)."""

    VOLATILE = 0
    DURABLE = 1


class Proximity(Named):
    """The distance of the physical object from the holder of the reference, nearest first (§4.5.1)."""

    PROCESS = 0
    NODE = 1
    RACK = 2
    CLUSTER = 3


class Deletion(Named):
    """The condition under which a physical object is destroyed (§4.2)."""

    REFERENCE_COUNTED = 0
    IMMEDIATE = 1
    IMMORTAL = 2


class NameKind(Named):
    """The way in which ``create`` makes the name of the new object (§4.3.1)."""

    RANDOM = 0
    DETERMINISTIC = 1
    ANONYMOUS = 2


class Semantics(Named):
    """The concurrent access levels of I/O requests (Table 4.5)."""

    EXCL = 0
    MRSW = 1
    SRMW = 2
    ANY = 3


class Mode(Named):
    """The direction of an I/O request, and the condition of ``select``."""

    READ = 0
    WRITE = 1


class Buffering(Named):
    """The bytes that a writer of a blob changes (§3.7): a shadow copy, or the shared bytes themselves."""

    DOUBLE = 0
    RAW = 1


class AcquireIov(Named):
    """Buffer options of the acquire calls (B.1.7)."""

    CREATE = 0
    TAKE = 1
    BORROW = 2
    REUSE = 3
    NONE = 4


class CommitIov(Named):
    """Buffer options of the commit calls (B.1.8, B.1.11)."""

    USE = 0
    MOVE = 1
    BORROW = 2


class Flag(enum.IntFlag):
    """The flags of the system calls (appendix B); each call refuses those without a meaning for it."""

    NONE = 0
    NON_BLOCKING = 1  # a call that would wait fails with EAGAIN; run: return before the child runs
    STAY_RUNNABLE = 2  # pause on self: yield only
    SPAWN_LOCAL = 4  # run: on this machine
    RELEASE_COMMIT = 8  # release: commit first
    HANDLE_ONLY = 16  # delete: drop the reference, never destroy the object
    BLANK = 32  # acquire_write: do not fill the buffer with the object's bytes
    REPLACE = 64  # commit_write: the object ends where the written range ends
    LOCAL_ONLY = 128  # lookup: never ask other nodes
    DESTROY = 256  # delete: destroy the object now; a task is ended and the reference kept
    EVERYONE = 512  # retire: everything delegated of the object, not only from this reference
    WITH_SESSION = 1024  # run: the child ends with the session that starts it
    FORKABLE = 2048  # run: the child can be forked later
    FORK = 4096  # run: the child is a fork of the task to repeat
    WITH_NETWORK = 8192  # run: the child may use the network of the node on which it runs
    SERVICES = 16384  # create: under the one name of the records of the caller's services
    SANDBOX = 32768  # run: the child is a sandbox's session, with the node's limits for these
    KEPT = 65536  # create: under the one name of the records of the caller's kept replicas
    GVISOR = 131072  # run: the child, a pure task, makes its system calls to gVisor


class Brand(Named):
    """Table 4.7."""

    PURE = 0
    LIMBO = 1
    LEGACY = 2


class Isolation(Named):
    """The kernel to which a pure task makes its system calls: that of the machine, or gVisor."""

    KERNEL = 0
    GVISOR = 1


class TaskState(Named):
    """The states of a task."""

    STARTING = 0
    RUNNING = 1
    PAUSED = 2
    ENDED = 3
    WAITING = 4  # for a place; it is not started yet


class Cause(Named):
    """The reason why a task ended; shown to its parent, to readers of its console and by ``dios ps``."""

    NONE = 0
    EXITED = 1  # its program ended by itself; see exit_code
    EXCEPTION = 2  # an exception left its program
    SIGNAL = 3  # a signal, see signal
    SANDBOX = 4  # the system-call filter ended it
    MEMORY = 5  # its memory limit
    CPU = 6  # its CPU-time limit
    KILLED = 7  # a task or user with the right deleted it
    PROTOCOL = 8  # it sent bytes that are not a message
    SPAWN = 9  # it could not be started
    NODE = 10  # the node shut down
    NODE_LOST = 11  # the node that ran it is dead, or out of reach for too long
    PREEMPTED = 12  # the scheduler gave its place to another task; it may be started again
    MOVED = 13  # it was asked to leave its node and had saved its state; to be run again elsewhere
    TIME = 14  # it ran for as long as its run may
    DEPENDENCY = 15  # it never began: a run after which it was to begin did not end as it has to


class RequestEnd(Named):
    """The end of an HTTP request that a sandbox made, in the audit log."""

    ANSWERED = 0
    REFUSED = 1  # it, or the address of its host, is not permitted
    UNREACHABLE = 2
    UNTRUSTED = 3  # the server could not prove that it is the origin
    TIMED_OUT = 4
    TOO_LARGE = 5  # it, or its answer, is over a bound
    BROKEN = 6  # the answer is not HTTP, or ended before its end
    CANCELLED = 7  # its sender needs it no more


class SandboxUse(Named):
    """The part of the inside of a sandbox that its owner uses, in the audit log."""

    PROGRAM = 0  # it is started; the value is the number of its arguments
    END = 1  # of a program; the value is its exit status, if the sandbox has told one
    PORT = 2  # a connection to it; the value is its number


class NodeStatus(Named):
    """The status of a node in the cluster, as another node knows it."""

    ALIVE = 0
    SUSPECT = 1  # it does not answer, and becomes dead soon
    DEAD = 2
    LEFT = 3  # it ended regularly


class Fitness(Named):
    """The ability of a node to run pure tasks, as far as it is known."""

    FIT = 0
    UNKNOWN = 1  # the node is still finding out, and tries again until it knows
    UNFIT = 2  # its machine lacks a mechanism


class NodeWish(Named):
    """The changes that an operator can request for a node."""

    DRAIN = 0  # no new task is placed there
    UNDRAIN = 1
    FORGET = 2  # its certificate is revoked; to come back it must be admitted again
    RESTORE = 3  # it is forgotten, and the nodes that it had removed are members again


class Resource(Named):
    """The resources that are counted, and can be limited, for a task, a group and a principal."""

    OBJECTS = 0
    BYTES = 1  # of objects, of versions that are still read, and of buffers for writing
    REFERENCES = 2
    REQUESTS = 3  # buffers held and calls that wait
    TASKS = 4
    CPU_MS = 5  # used, or reserved for running tasks
    MEMORY_BYTES = 6  # reserved for running tasks
    VOLATILE_BYTES = 7  # the part of BYTES that is in memory and not in the store
    DESCRIPTORS = 8  # of the node, for streams, sockets, memory and open files


class Scope(Named):
    """The units for which the use of resources is counted."""

    TASK = 0  # a task and everything it starts
    GROUP = 1  # the objects in a group, and the tasks that are members of it
    PRINCIPAL = 2  # everything on behalf of one user of the infrastructure
    NODE = 3  # everything


class Affinity(Named):
    """The placement of the tasks of a job relative to each other (§6.3.1, C.4.1)."""

    NONE = 0
    SPREAD_NODES = 1  # no two on one node
    SPREAD_RACKS = 2
    SAME_NODE = 3
    SAME_RACK = 4


class Operator(Named):
    """The comparison of a constraint with a node's label."""

    EQUAL = 0
    UNEQUAL = 1
    PRESENT = 2
    ABSENT = 3


class Traffic(Named):
    """The kinds of traffic that principals share by rates, in bytes per second (EDRF)."""

    OUT = 0  # bytes of data connections to other nodes, on behalf of a principal
    IN = 1  # the same, from other nodes
    STORE = 2  # durable contents written
