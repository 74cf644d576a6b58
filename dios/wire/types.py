"""The enumerations that both sides of the wire share: types, rights, levels and flags of the thesis.

Not for: messages (``dios.wire.messages``). A number here is never re-used for something else.
"""

from __future__ import annotations

import enum


class Named(enum.IntEnum):
    """A number on the wire that people read as a word."""

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
    DURABLE_STREAM = 12  # beside the thesis: a log on disk whose readers keep their own places
    NETWORK = 13  # beside the thesis: whoever may write it may make network objects


class Permission(enum.IntFlag):
    """What a reference lets its holder do; resolution gives ALL, delegation only removes (§4.3.3)."""

    NONE = 0
    READ = 1
    WRITE = 2
    EXECUTE = 4
    DELEGATE = 8
    DELETE = 16
    ALL = 31


class Persistence(Named):
    """Whether a physical object survives the node's restart (§3.6)."""

    VOLATILE = 0
    DURABLE = 1


class Proximity(Named):
    """How far the physical object is from the reference's holder, nearest first (§4.5.1)."""

    PROCESS = 0
    NODE = 1
    RACK = 2
    CLUSTER = 3


class Deletion(Named):
    """When a physical object is ready for destruction (§4.2)."""

    REFERENCE_COUNTED = 0
    IMMEDIATE = 1
    IMMORTAL = 2


class NameKind(Named):
    """How ``create`` makes the new object's name (§4.3.1)."""

    RANDOM = 0
    DETERMINISTIC = 1
    ANONYMOUS = 2


class Semantics(Named):
    """Concurrent access levels of I/O requests (Table 4.5)."""

    EXCL = 0
    MRSW = 1
    SRMW = 2
    ANY = 3


class Mode(Named):
    """Direction of an I/O request, and what ``select`` waits for."""

    READ = 0
    WRITE = 1


class Buffering(Named):
    """What a writer of a blob sees (§3.7): a shadow copy, or the shared bytes themselves."""

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
    """Flags of the system calls (appendix B); each call refuses those that mean nothing to it."""

    NONE = 0
    NON_BLOCKING = 1  # any call that would wait: EAGAIN instead; run: return before the child runs
    STAY_RUNNABLE = 2  # pause on self: yield only
    SPAWN_LOCAL = 4  # run: on this machine
    RELEASE_COMMIT = 8  # release: commit first
    HANDLE_ONLY = 16  # delete: drop the reference, never destroy the object
    BLANK = 32  # acquire_write: do not fill the buffer with the object's bytes
    REPLACE = 64  # commit_write: the object ends where the written range ends
    LOCAL_ONLY = 128  # lookup: never ask other nodes
    DESTROY = 256  # delete: destroy it now whatever its deletion mode; a task is ended, the reference kept
    EVERYONE = 512  # retire: whatever was delegated of the object, not only from this reference


class Brand(Named):
    """Table 4.7."""

    PURE = 0
    LIMBO = 1
    LEGACY = 2


class TaskState(Named):
    """Life of a task object."""

    STARTING = 0
    RUNNING = 1
    PAUSED = 2
    ENDED = 3
    WAITING = 4  # for its place: not started yet


class Cause(Named):
    """Why a task ended; told to its parent, its console's readers and ``dios ps``."""

    NONE = 0
    EXITED = 1  # its program ended by itself; see exit_code
    EXCEPTION = 2  # an exception left its program
    SIGNAL = 3  # a signal, see signal
    SANDBOX = 4  # the system-call filter ended it
    MEMORY = 5  # its memory limit
    CPU = 6  # its CPU-time limit
    KILLED = 7  # somebody with the right deleted it
    PROTOCOL = 8  # it sent what is no message
    SPAWN = 9  # it could not be started
    NODE = 10  # the node shut down
    NODE_LOST = 11  # the node that ran it is dead, or out of reach for too long
    PREEMPTED = 12  # who schedules gave its place to another; it may be started again


class NodeStatus(Named):
    """How a node stands in the cluster, as another sees it."""

    ALIVE = 0
    SUSPECT = 1  # it does not answer; soon it is dead
    DEAD = 2
    LEFT = 3  # it said good-bye


class NodeWish(Named):
    """What people ask for a node."""

    DRAIN = 0  # no new task is placed there
    UNDRAIN = 1
    FORGET = 2  # its certificate is revoked; whoever wants it back admits it anew


class Resource(Named):
    """What is counted, and can be limited, for a task, a group and a principal."""

    OBJECTS = 0
    BYTES = 1  # of objects, of versions somebody still reads, and of buffers being written
    REFERENCES = 2
    REQUESTS = 3  # buffers held and calls that wait
    TASKS = 4
    CPU_MS = 5  # used, or set aside for tasks that run
    MEMORY_BYTES = 6  # set aside for tasks that run
    VOLATILE_BYTES = 7  # those of BYTES that are in memory and in no store


class Scope(Named):
    """Whose use of resources is counted together."""

    TASK = 0  # a task and everything it starts
    GROUP = 1  # the objects in a group, and the tasks that are members of it
    PRINCIPAL = 2  # everything done for one infrastructure user
    NODE = 3  # everything


class Affinity(Named):
    """How a job's tasks stand to each other (§6.3.1, C.4.1)."""

    NONE = 0
    SPREAD_NODES = 1  # no two on one node
    SPREAD_RACKS = 2
    SAME_NODE = 3
    SAME_RACK = 4


class Operator(Named):
    """How a constraint looks at a node's label."""

    EQUAL = 0
    UNEQUAL = 1
    PRESENT = 2
    ABSENT = 3


class Traffic(Named):
    """What principals share by rates, in bytes per second (EDRF)."""

    OUT = 0  # bytes of data connections to other nodes, for the principal for whom they go
    IN = 1  # the same, from other nodes
    STORE = 2  # durable contents written
