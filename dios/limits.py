"""Bounds that several packages share, with the relations between them asserted at import.

Settings of an operator (``dios.node.settings``) may lower a bound, and never raise it. The unit is the last
part of a name before ``MAX`` and ``MIN``; a name without a unit is a number of things. Sections follow the
packages that use the bounds.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

KIB: Final = 1024
MIB: Final = 1024 * KIB
GIB: Final = 1024 * MIB

# -- the wire -------------------------------------------------------------------------------------
FRAME_BYTES_MAX: Final = 256 * KIB
REPLY_BYTES_MAX: Final = 2 * MIB
INLINE_BYTES_MAX: Final = 32 * KIB
WELCOME_PROGRAM_BYTES_MAX: Final = 16 * KIB  # a larger program is read by its task
VECTOR_CALLS_MAX: Final = 1024
NAME_BYTES: Final = 32
DESCRIPTORS_PER_FRAME_MAX: Final = 64
SECRECY_TAGS_MAX: Final = 16
# Sums that tasks with labels change are shown to others in whole steps.
SUM_STEP: Final = 64
SUM_STEP_BYTES: Final = 64 * MIB
SUM_STEP_CPU_MS: Final = 10_000
TEXT_BYTES_MAX: Final = 4 * KIB
SOCKET_PATH_BYTES_MAX: Final = 107

# -- one connection -------------------------------------------------------------------------------
SEND_QUEUE_BYTES_MAX: Final = 4 * MIB
SEND_QUEUE_ENTRY_BYTES: Final = 256
BATCHED_BYTES_MAX: Final = 16 * KIB  # of frames that are joined; also the most of a TLS record
DESCRIPTORS_QUEUED_MAX: Final = 64
DESCRIPTORS_UNREAD_MAX: Final = 256  # sent to one peer, and perhaps not received
DESCRIPTORS_RETRY_MS: Final = 10
DESCRIPTORS_LINGER_MS: Final = 250  # between two looks at a peer that left descriptors unread
RECEIVE_BYTES: Final = 66 * KIB  # an answer with 64 KB in it is received at once
RECEIVE_SPINS_MAX: Final = 6  # tries to receive before the node waits for a peer that answers fast
RECEIVE_SHORT_WAIT_NS: Final = 50_000  # a peer whose last message came within this time answers fast
SPIN_NS_MAX: Final = 400_000  # one adaptive spin before a blocking wait; most answers take less
SPIN_BACKOFF_WAITS_MIN: Final = 16  # waits without a spin after a failed spin; doubled each time
SPIN_BACKOFF_WAITS_MAX: Final = 1_024
PENDING_PER_TASK_MAX: Final = 256  # waiting calls
STORY_ENTRIES_MAX: Final = 1_024  # newest calls and events that a node remembers
CALLS_UNDER_WAY_MAX: Final = 64  # that a thread makes at a time; other threads of its program wait, too
REFERENCES_PER_TASK_MAX: Final = 16_384
BUFFERS_PER_TASK_MAX: Final = 4_096
EVENTS_PER_TASK_MAX: Final = 1_024
RESULT_BYTES_TYPICAL: Final = 256  # reserved in a reply for each part of a vector
HELLO_MS_MAX: Final = 10_000
CONNECTIONS_MAX: Final = 1_024
CONNECTIONS_RESERVED: Final = 64  # for the node's own user and root

# -- the work of one step of the core ---------------------------------------------------------------
STEP_WORK_MAX: Final = 650_000  # lines of the core's code that one step executes; tests measure them
STEP_UNITS: Final = 256  # of long work, such as dropped references, in one step; the rest follows
VECTOR_UNITS_MAX: Final = 2_048  # of one vector; further calls of it are refused
TURN_UNITS_MAX: Final = 64  # of one connection before the others get their turn
TURN_ALONE_UNITS_MAX: Final = 128  # of all connections of a principal, if it is the only one
TURN_UNIT_NS: Final = 20_000  # a step that takes longer counts as more units
TURN_OPENING_UNITS: Final = 8  # of the opening of a session
TURN_LIGHT_UNITS_MAX: Final = 4  # of a connection that goes before the long queues of its principal
MEMBERSHIPS_PER_TASK_MAX: Final = 1_024
TASK_ROWS_MAX: Final = 6_144  # of one answer

# -- the public page of references ----------------------------------------------------------------
PUBLIC_SLOT_BYTES: Final = 128
PUBLIC_PAGE_BYTES: Final = PUBLIC_SLOT_BYTES * REFERENCES_PER_TASK_MAX
PUBLIC_SLOT_READS_MAX: Final = 100_000

# -- calls ----------------------------------------------------------------------------------------
GROUPS_PER_CALL_MAX: Final = 32
GROUPS_PRESENTED_MAX: Final = 768  # of a keyring in one session, so that there is room for new groups
LOOKUP_REFERENCES_MAX: Final = 64
SELECT_REFERENCES_MAX: Final = 1_024
ARGUMENTS_MAX: Final = 256
RUN_INPUTS_MAX: Final = 240  # objects that `dios run` hands to a task; the rest is for outputs and rights
ARGUMENT_BYTES_MAX: Final = 64 * KIB
SELECT_TIMEOUT_MS_MAX: Final = 7 * 24 * 3600 * 1000

# -- objects --------------------------------------------------------------------------------------
BLOB_BYTES_MAX: Final = 64 * GIB
STREAM_RING_BYTES_DEFAULT: Final = 1 * MIB
STREAM_RING_BYTES_MIN: Final = 4 * KIB
STREAM_RING_BYTES_MAX: Final = 256 * MIB
STREAM_MESSAGE_BYTES_MAX: Final = 1 * GIB
STREAM_BATCH_MAX: Final = 1_024
STREAM_BATCH_BYTES: Final = 64 * KIB
STREAM_DESCRIPTORS: Final = 4  # of the node, for the ring of a stream while an end waits for its task
STREAM_DESCRIPTORS_ATTACHED: Final = 3  # the same, afterwards
MEMORY_DESCRIPTORS: Final = 2  # of the node, for bytes in shared memory, and for its mapping
FILE_DESCRIPTORS: Final = 1  # of the node, for the file of a large stored object that a task reads
MEMORY_POOL_BYTES_MAX: Final = 256 * MIB
MEMORY_POOL_ENTRIES_MAX: Final = 64
COPY_BLOCK_BYTES: Final = 256 * KIB
COPY_SPLIT_BYTES_MIN: Final = 8 * MIB
CONSOLE_TAIL_BYTES: Final = 256 * KIB
CONSOLE_READ_BYTES: Final = 64 * KIB
CONSOLE_READER_TIMEOUT_MS: Final = 1_000  # the longest wait for a console's reader
CONSOLE_ENDED_BYTES_MAX: Final = 32 * MIB
CONTENT_CACHE_BYTES: Final = 64 * MIB
CONTENT_CACHE_FILES_MAX: Final = 256
LOOP_COPY_BYTES_MAX: Final = 1 * MIB
COPIES_AT_ONCE_MAX: Final = 2
SPAWNS_AT_ONCE_MAX: Final = 4
SPARSE_COPY_BYTES_MIN: Final = 1 * MIB
ENDED_TASKS_KEPT: Final = 1_024  # of each principal
ENDED_TASKS_KEPT_MAX: Final = 4_096  # of all principals
LOGS_KEPT: Final = 1_024  # of each principal
LOGS_KEPT_MAX: Final = 4_096  # of all principals
LOG_BYTES_MAX: Final = 16 * KIB
SPECIAL_NAMES_MAX: Final = 65_536
STALE_TIMERS_MAX: Final = 1_024
LIFETIME_NS_MAX: Final = 366 * 24 * 3600 * 1_000_000_000  # of a reference with an expiry
FAILED_PROGRAMS_KEPT: Final = 64
RECIPES_KEPT: Final = 256
FAILED_PROGRAM_BYTES_MAX: Final = 1 * MIB
LIMIT_ROWS_MAX: Final = 4_096

# -- logs ------------------------------------------------------------------------------------------
LOG_HEAD_BYTES: Final = 12
LOG_ENTRY_BYTES_MAX: Final = INLINE_BYTES_MAX - LOG_HEAD_BYTES
LOG_FILES_OPEN_MAX: Final = 64

# -- traces ----------------------------------------------------------------------------------------
TRACE_CONTEXT_BYTES: Final = 25  # W3C: a trace of 16 bytes, a span of 8, and flags
TRACE_SPANS_MAX: Final = 32  # in the answer to one call
TRACED_CALLS_MAX: Final = 1_024  # without an answer, at one node; the oldest ones above it have no spans
TRACE_SPANS_KEPT: Final = 100_000  # in a client, until they are written
TASK_SPANS_MAX: Final = 1_024  # that a task returns to the program that started it
TASK_SPANS_BYTES_MAX: Final = 256 * KIB  # the same, as they are returned

# -- the node's own log ----------------------------------------------------------------------------
NODE_LOG_LINES_KEPT: Final = 2_048  # in memory, for readers
NODE_LOG_BYTES_KEPT: Final = 1 * MIB
NODE_LOG_TEXT_CHARS_MAX: Final = 4_096  # of a message or a field
NODE_LOG_FIELDS_CHARS_MAX: Final = 8_000  # of all fields of a record, as JSON

# -- network streams ------------------------------------------------------------------------------
PORT_MAX: Final = 65_535
SOCKET_DESCRIPTORS: Final = 24  # of the node, for the socket and both rings of a network stream
ACCEPTOR_DESCRIPTORS: Final = 65  # of the node, for a listener and the connections that wait at it
DATAGRAM_BYTES_MAX: Final = 65_535
NETWORK_RING_BYTES_DEFAULT: Final = 256 * KIB
NETWORK_SOCKETS_MAX: Final = 4_096
NETWORK_CONNECT_MS_MAX: Final = 30_000
NETWORK_RESOLVERS_MAX: Final = 4
NETWORK_ADDRESSES_MAX: Final = 8
NETWORK_LINGER_MS_MAX: Final = 30_000
NETWORK_PIECE_BYTES: Final = 128 * KIB
NETWORK_RETRY_MS: Final = 100
ACCEPT_BACKLOG: Final = 256
ACCEPT_WAITING_MAX: Final = 64
ORIGINS_MAX: Final = 32  # of a NETWORK object
METHOD_CHARS_MAX: Final = 16  # of an HTTP request in the audit log
RECORDED_PROGRAM_CHARS_MAX: Final = 256  # of the name of a program that a sandbox starts, there
FORWARDED_CONNECTIONS_MAX: Final = 12  # of one forwarded port; a sandbox has programs, too
WATCHED_FILES_MAX: Final = 20_000  # of one watch
SANDBOX_PROGRAMS_MAX: Final = 24  # started programs and connections of a sandbox that run at once

# -- the store ------------------------------------------------------------------------------------
INLINE_VALUE_BYTES_MAX: Final = 16 * KIB
STORE_BATCH_MAX: Final = 256
STORE_QUEUE_MAX: Final = 4_096
STORE_MAP_BYTES_DEFAULT: Final = 16 * GIB
STORE_MAP_GROWTH_BYTES: Final = 16 * MIB
STORE_FREE_BYTES_MIN: Final = 1 * MIB  # a disk with less counts as full
STORE_COPY_BYTES: Final = 1 * MIB
STORE_WORKERS_MAX: Final = 4
LOCK_TIMEOUT_MS: Final = 1_000
STORE_SPARE_DESCRIPTORS: Final = 16
STORE_MAP_BYTES_MIN: Final = 1 * MIB
STORE_MAP_BYTES_MAX: Final = 1024 * GIB

# -- tasks ----------------------------------------------------------------------------------------
TASK_POOL_SIZE_DEFAULT: Final = 4
DAEMON_SLICE_NS: Final = 100_000  # of its loop, the shortest that the kernel knows
TASKS_MAX: Final = 5_120
TASKS_MAX_LEAST: Final = 16  # by default, on a machine with little memory
TASK_BYTES_TYPICAL: Final = 32 * MIB
TASK_GENERATIONS_MAX: Final = 256
TASK_MEMORY_BYTES_DEFAULT: Final = 4 * GIB
TASK_MEMORY_BYTES_MIN: Final = 64 * MIB
TASK_MEMORY_BYTES_MAX: Final = 1024 * GIB
VOLATILE_BYTES_MIN: Final = 16 * MIB
VOLATILE_BYTES_MAX: Final = 1024 * GIB
VOLATILE_PERCENT: Final = 40
PRELOAD_MODULES_MAX: Final = 64
TASK_PROCESSES_DEFAULT: Final = 256
TASK_CPU_MS_MAX: Final = 366 * 24 * 3600 * 1000
POOL_FAILURES_MAX: Final = 3
POOL_RETRY_MS_MIN: Final = 1_000  # after these failures in a row; doubled each time
POOL_RETRY_MS_MAX: Final = 60_000
POOL_REFILL_MS: Final = 5
FITNESS_AT_START_MS_MAX: Final = 3_000  # the start of a node waits for the answer
FITNESS_WAIT_MS_MAX: Final = 60_000  # commands that start nodes wait for it
FITNESS_PAUSE_MS_MIN: Final = 1_000  # between attempts to know if a node is fit for pure tasks; it doubles
FITNESS_PAUSE_MS_MAX: Final = 60_000
UNFIT_PAUSE_MS: Final = 600_000  # until a mechanism that is missing is tried again
SANDBOX_PROBE_CPU_S_MAX: Final = 20  # for each of its processes
ZYGOTE_STOP_MS_MAX: Final = 5_000
ZYGOTE_MESSAGE_BYTES_MAX: Final = 64 * KIB
TASK_OPEN_FILES_MAX: Final = 4_096
TASK_OPEN_FILES_MIN: Final = 128  # of a task whose memory no control group counts
TASK_OPEN_FILES_UNCOUNTED_MAX: Final = 2_048  # the same; fewer for a small memory limit
DESCRIPTOR_KERNEL_BYTES: Final = 256 * KIB  # kept by the kernel for a socket with a full buffer, by default
TASK_MAPPED_BYTES_MAX: Final = 2 * BLOB_BYTES_MAX  # address space for buffers, without a control group
CONTAINER_OPEN_FILES_MAX: Final = 512  # of a process; far fewer than a zygote's, which must be able to send
TASK_SIGNALS_MAX: Final = 256
PROCESS_NUMBERS_DEFAULT: Final = 32_768  # of a machine that does not show its number
TASK_MEMORY_WATCH_MS: Final = 100  # between two readings of the memory of tasks without a control group
CONTAINER_TIME_WATCH_MS: Final = 500  # between two readings of the processor time of a container
OWN_KERNEL_BYTES: Final = 96 * MIB  # of the processes that are the kernel of a task in gVisor
OWN_KERNEL_MAPPED_BYTES: Final = 64 * GIB  # of a process there, beyond its memory: libraries, stacks, inputs
OWN_KERNEL_THREADS: Final = 128  # of these processes
TASK_MEMORY_WATCH_BATCH: Final = 16  # tasks that are read before others of the daemon get their turn
TASK_STACK_BYTES_MAX: Final = 8 * MIB
TASK_WELCOME_WAIT_MS: Final = 20  # a fresh child waits this long for its task before it belongs to the pool
LAST_LINES_KEPT: Final = 20
TASK_DRAIN_MS_MAX: Final = 1_000

RUN_TIME_MS_MAX: Final = 366 * 86_400_000  # of the time after which a node ends a task
GRACE_MS_MAX: Final = 300_000  # in which a task that must leave its node saves its state
MOVE_WAIT_MS_MAX: Final = 3_600_000  # of one call that waits to be asked
PROGRESS_WHOLE: Final = 1_000  # the progress of a task that has done all of its work
EXECUTOR_GRACE_MS: Final = 5_000  # in which the present call of a worker may end before another one makes it
LOCAL_PACKAGE_BYTES_MAX: Final = 64 * MIB  # of the files of a package that is sent to workers
LOCAL_PACKAGE_FILES_MAX: Final = 20_000
LOCAL_PACKAGES_BYTES_MAX: Final = 256 * MIB  # of all packages of an executor
ENVIRONMENT_BYTES_MAX: Final = 4 * GIB  # of the files of an environment
ENVIRONMENT_FILES_MAX: Final = 100_000
ENVIRONMENT_PATH_CHARS_MAX: Final = 1_024
ENVIRONMENT_DEPTH_MAX: Final = 32
ENVIRONMENT_PACKAGES_MAX: Final = 2_000
ENVIRONMENT_MANIFEST_BYTES_MAX: Final = 16 * MIB
ENVIRONMENTS_MAX: Final = 256  # on a node
ENVIRONMENTS_BYTES_DEFAULT: Final = 8 * GIB  # on the disk of a node
ENVIRONMENTS_BYTES_MAX: Final = 16 * 1024 * GIB
IMAGE_ENTRIES_MAX: Final = 200_000  # of an image
IMAGE_DEPTH_MAX: Final = 64
IMAGE_NAME_BYTES_MAX: Final = 255  # of a file or folder, as in most file systems
IMAGE_TARGET_CHARS_MAX: Final = 4_096
IMAGE_VARIABLES_CHARS_MAX: Final = 8 * KIB  # of all environment variables of an image
IMAGE_VARIABLES_MAX: Final = 256
IMAGE_MANIFEST_BYTES_MAX: Final = 32 * MIB
IMAGE_LAYERS_MAX: Final = 256
IMAGE_INDEX_BYTES_MAX: Final = 4 * MIB  # of an index, a manifest or a configuration in a layout
SANDBOX_FORKS_MAX: Final = 1_000  # of one call
CHANGES_ATTRIBUTES_MAX: Final = 16  # extended attributes of a changed file
CHANGES_ATTRIBUTE_BYTES_MAX: Final = 4 * KIB  # of one attribute
IMAGE_LAYER_BYTES_MAX: Final = 16 * GIB  # of a layer as it is unpacked; shadowed files count
ENVIRONMENT_LOCK_BYTES_MAX: Final = 4 * MIB  # of a file of requirements
ENVIRONMENT_INSTALL_S_MAX: Final = 1_800  # in which an installer must end
ENVIRONMENT_CACHE_BYTES: Final = 8 * GIB  # of archives that a user's programs keep
JOB_GRACE_MS: Final = 5_000  # the same for a task of a MapReduce job
CHECKPOINT_BYTES_MAX: Final = 1 * GIB

# -- WebAssembly modules ---------------------------------------------------------------------------
WASM_BUFFERS_MAX: Final = 1_024  # of one call
WASM_PATH_BYTES_MAX: Final = 4 * KIB
WASM_DESCRIPTORS_MAX: Final = 1_024
WASM_TRANSFER_BYTES: Final = 1 * MIB  # that the host copies at once
WASM_TABLE_ELEMENTS_MAX: Final = 1_000_000

# -- the client ----------------------------------------------------------------------------------
KEYRING_NAMES_MAX: Final = 10_000

# -- a node's process -----------------------------------------------------------------------------
OPEN_FILES_MAX: Final = 2**20  # of a node, also where the system sets no limit
NODE_DESCRIPTORS: Final = 8_192  # for connections, tasks, peers and the store; half of all if there are few
PRINCIPAL_DESCRIPTORS_PERCENT: Final = 75  # of those for objects, for one principal by default
NODE_START_MS_MAX: Final = 60_000
START_QUIET_MAX: Final = 60  # looks in a row, one each second, at a starting process that does nothing
START_CPU_MS_MAX: Final = 600_000  # of processor time without a report of progress
NODE_STOP_MS_MAX: Final = 10_000
CONTINUATION_SETTLE_MS_MAX: Final = 5_000  # until nothing is under way, before a program is replaced
CONTINUATION_NOTICE_MS_MAX: Final = 200  # that a restart waits until it is announced to the other nodes
CONTINUATION_PATIENCE_MS: Final = 10_000  # that other nodes wait for a node that announced it
HANDED_OVER_MAX: Final = 2**24  # things of one kind that a program hands to its successor
NODE_ANSWER_MS_MAX: Final = 3_000  # a command waits this long for a node
NODE_SIGNAL_MS_MAX: Final = 4_000  # between SIGTERM and SIGKILL
GC_THRESHOLD_OBJECTS: Final = 10_000  # allocations between two runs of the garbage collector in a daemon
GC_YOUNG_RUNS: Final = 1  # of these before one that looks again at the objects that survived them
GC_FULL_RUNS_MIN: Final = 4  # of the latter before a quiet node looks at all objects
GC_FULL_RUNS_MAX: Final = 64  # the same for a busy node
METER_READER_MS: Final = 600_000  # calls are counted for this time after the metrics were read
METER_CALLS_MAX: Final = 8_192  # of calls that wait, with the times of their arrival
ENTROPY_BYTES: Final = 4 * KIB

# -- names and ports of nodes ---------------------------------------------------------------------
NODE_NAME_BYTES_MAX: Final = 63
HOST_NAME_BYTES_MAX: Final = 253
LOCAL_NODES_MAX: Final = 64
LOCAL_PORT_FIRST: Final = 20_000
LOCAL_PORT_LAST: Final = 31_999

# -- membership of a cluster ----------------------------------------------------------------------
NODES_MAX: Final = 4_096
NODES_FORGOTTEN_MAX: Final = 4_096
NODE_ADDRESS_CHARS_MAX: Final = 264
FINGERPRINT_CHARS_MAX: Final = 64
EPOCH_MAX: Final = 2**26  # starts of one node
COUNTER_MAX: Final = 2**62  # of a number that only counts up
GOSSIP_UPDATES_MAX: Final = 16
GOSSIP_RETRANSMIT_FACTOR: Final = 3
GOSSIP_RETRANSMIT_MAX: Final = 18  # sends of one piece of news by one node
GOSSIP_LOADS_PER_MESSAGE: Final = 4  # rows of nodes of which only the load changed
GOSSIP_PARTNERS: Final = 8  # in a larger cluster only these and the successor are probed
GOSSIP_DIGESTS: Final = 32  # parts of a table that two nodes compare
GOSSIP_TABLE_ROWS_MAX: Final = 128  # of one message
GOSSIP_TABLES_PER_ANSWER: Final = 2
GOSSIP_WITNESSES: Final = 16  # nodes that ping a suspect, on average
GOSSIP_URGENT_PER_PERIOD: Final = 24  # messages with urgent news; what is left over travels with pings
GOSSIP_PERIOD_MS: Final = 500
GOSSIP_PINGS_PER_PERIOD: Final = 1
GOSSIP_ACK_TIMEOUT_MS: Final = 400
GOSSIP_RELAYS: Final = 3
GOSSIP_RELAYED_MAX: Final = 256
GOSSIP_SUSPICION_MS: Final = 1_000
GOSSIP_BROKEN_SUSPICION_MS: Final = 500
GOSSIP_STALL_MS: Final = 500
GOSSIP_DEAD_PERIOD_MS: Final = 2_000
GOSSIP_RECENT_ANSWER_MS: Final = 2_000
GOSSIP_TABLE_PERIOD_MS: Final = 15_000
GOSSIP_REPAIR_PERIOD_MS: Final = 1_000  # while tables differ
GOSSIP_VERSION_JUMP_MAX: Final = 2**32
CLOCK_DRIFT_PPM: Final = 200  # of a machine's clock; a measured offset grows less certain by this
CLOCK_SKEW_MS_MAX: Final = 1_000  # doctor warns about clocks that differ by more
ANNOUNCE_PORT: Final = 7_399
ANNOUNCE_PERIOD_MS: Final = 5_000
ANNOUNCE_RETRY_MS_MIN: Final = 5_000  # on a machine without multicast; doubled each time
ANNOUNCE_RETRY_MS_MAX: Final = 300_000
ANNOUNCE_PAUSE_MS: Final = 10
ANNOUNCE_BYTES_MAX: Final = 512
ANNOUNCE_SEEKS_MAX: Final = 16
ANNOUNCE_SEEK_MS: Final = 10_000

# -- identities and connections of nodes ----------------------------------------------------------
CHAIN_CERTIFICATES_MAX: Final = 12
CERTIFICATE_DAYS: Final = 14  # the life of the certificate of a node that signs no others
CERTIFICATE_DAYS_MAX: Final = 3_650
CERTIFICATE_SKEW_S: Final = 600  # by which clocks of nodes may differ before ends are judged wrongly
RENEWAL_MS_MAX: Final = 20_000  # for one attempt to renew a certificate at one node
RENEWALS_TRIED_MAX: Final = 32  # nodes that are asked in one attempt
RENEWAL_RETRY_MS_MIN: Final = 2_000
RENEWAL_RETRY_MS_MAX: Final = 300_000
RENEWAL_LOOK_MS_MAX: Final = 600_000  # after which a node looks at its clock again
CERTIFICATE_BYTES_MAX: Final = 8 * KIB
NODES_RESERVED: Final = 64  # of the known nodes, for those that were not admitted by one and the same member
NODES_REMOVED_BY_MEMBER_MAX: Final = 512
SEEDS_KEPT_MS: Final = 600_000  # after a start, in which a node keeps the addresses of the last one as well
GENERATIONS_MAX: Final = 1_024  # of the secret of a cluster, which all are kept
GENERATION_DUTY_MS: Final = 5_000  # at most, after which the first authority makes one that is due
GENERATION_TURNS_MAX: Final = 15  # the authorities that have turns of their own
STORE_AGAIN_MS: Final = 5_000  # after which what other nodes have sent is stored again, if it could not be
STATEMENT_BYTES_MAX: Final = 256 * KIB
STATEMENTS_BURST: Final = 512  # changed statements of one signer that are read at once, and then each second
STATEMENTS_PER_S: Final = 2
MANDATE_BYTES_MAX: Final = 2 * KIB
MANDATE_EXTENSIONS_MAX: Final = 8  # nodes through which a task of a user can start tasks, one after the other
MANDATE_MS: Final = 12 * 3_600_000  # of a session's mandate, which is renewed when half of it is over
MANDATE_MS_MAX: Final = 31 * 24 * 3_600_000
MANDATE_COPY_MS: Final = 3_600_000  # for a node that makes a copy on a third node
MANDATE_SKEW_MS: Final = 5 * 60_000  # by which the clocks of nodes may differ
MANDATES_PER_REQUEST_MAX: Final = 8
MANDATES_PRESENTED_MAX: Final = 4_096  # that another node is known to have
ENROLLED_MAX: Final = 1_024
KEYS_PER_PRINCIPAL_MAX: Final = 16
REGISTER_BYTES_MAX: Final = 128 * KIB
USER_ANSWER_BYTES_MAX: Final = 4 * KIB  # that root reads of a program which makes the key of another user
TRUST_BYTES_MAX: Final = 512 * KIB  # of the statements that a joining node gets with its certificate
TOKENS_MAX: Final = 256
TOKEN_USES_MAX: Final = NODES_MAX
TOKEN_VALID_S_MAX: Final = 366 * 24 * 3600
TOKEN_TEXT_CHARS_MAX: Final = 4 * KIB
JOIN_FRAME_BYTES_MAX: Final = 2 * MIB
JOIN_MS_MAX: Final = 60_000  # a member that is stopped for a while, or busy, answers late
PEER_CONNECT_MS_MAX: Final = 5_000
HANDSHAKE_MS_MAX: Final = 5_000
HANDSHAKES_AT_ONCE_MAX: Final = 256
REFUSAL_BYTES_MAX: Final = 1 * KIB
DCP_FRAME_BYTES_MAX: Final = 1 * MIB
DCP_QUEUE_BYTES_MAX: Final = 16 * MIB
DCP_CONTROL_RUN_MAX: Final = 32  # frames of control before one of bulk, if both wait
TLS_PIECE_BYTES: Final = 128 * KIB  # encrypted or received with one system call
DCP_UNSENT_BYTES: Final = 128 * KIB  # in the kernel; what waits in the node can still be overtaken
INCOMING_BYTES_MAX: Final = 16 * MIB  # of a node's requests that wait for their turn
INCOMING_ENTRY_BYTES: Final = 1 * KIB  # of memory for each, in addition to its frame
DATA_PIECE_BYTES: Final = 256 * KIB
TCP_USER_TIMEOUT_MS: Final = 30_000
DATA_CONNECTIONS: Final = 2
DATA_CONNECTIONS_MAX: Final = 16  # with rates: one for each principal, in addition to DATA_CONNECTIONS
DCP_INLINE_BYTES_MAX: Final = 256 * KIB
RECEIVED_INLINE_BYTES_MAX: Final = 64 * KIB
DCP_MESSAGE_BYTES_MAX: Final = 4 * MIB
DCP_RECEIVING_BYTES_MAX: Final = 4 * GIB
STREAM_PENDING_BYTES_MAX: Final = 16 * MIB  # of a stream between nodes, while a program is replaced
PEER_STREAMS_MAX: Final = 512
STREAM_PIECE_BYTES: Final = 256 * KIB
DCP_TRANSFERS_QUEUED_MAX: Final = 8_192
DCP_SMALL_FRAME_BYTES_MAX: Final = 4 * KIB
DCP_QUEUE_HIGH_WATER_BYTES: Final = 2 * MIB  # above it only small frames are queued
PEER_IDLE_MS: Final = 30_000  # a connection on which nothing was sent for this time ends
PEER_WAITING_GOSSIP_MAX: Final = 16  # messages of gossip that wait for a connection
PEER_RETRY_MS_MIN: Final = 20
PEER_RETRY_MS_MAX: Final = 1_000
PEER_PROBE_MS_MAX: Final = 100
LOAD_PERIOD_MS: Final = 3_000

# -- catalogues -----------------------------------------------------------------------------------
CATALOGUE_ENTRIES_MAX: Final = 100_000
DIGEST_BYTES: Final = 32  # of the bytes of a file, in its catalogue
FILE_WHOLE_BYTES_MAX: Final = 256 * MIB  # a larger file is stored in parts
FILE_PART_BYTES: Final = 64 * MIB
FILE_PARTS_MAX: Final = 4_096  # of one file; larger files have larger parts
FILE_PARTS_ANNOUNCED: Final = 16  # objects of parts that are listed before their bytes are stored
CATALOGUE_PARTS_MAX: Final = 65_536  # of all files of a catalogue
CATALOGUE_UNFINISHED_MAX: Final = 1_024
CATALOGUE_NOTES_MAX: Final = CATALOGUE_ENTRIES_MAX  # every file can be replaced in one write
CATALOGUE_NOTES_PARTS_MAX: Final = 4 * CATALOGUE_PARTS_MAX  # of former files and their replacements
NOTE_SWEEP_MS: Final = 300_000  # a program executes older notes of a group without a promise
CATALOGUE_LOOK_MS: Final = 10_000  # a writer looks for new replicas of a catalogue this often
CATALOGUE_EDITS_MAX: Final = 64
CATALOGUE_EDIT_S: Final = 60  # for which a program tries to change a catalogue while others do
CATALOGUE_PAUSE_US_MAX: Final = 100_000  # between two attempts
CATALOGUE_FRESH_MS: Final = 1_000  # a reader asks more than the replica of its node this often
RECORD_SIGNATURE_BYTES_MAX: Final = 128  # of the header of a replicated record
SERVICE_LISTS_MAX: Final = 3  # nodes with a list of a service's members, unless its creator says where
SERVICE_MEMBERS_MAX: Final = 1024  # tasks that accept connections of one service
SHELL_HISTORY_MAX: Final = 1_000

# -- requests between nodes -----------------------------------------------------------------------
DCP_REQUESTS_MAX: Final = 4_096  # open requests to one node; further ones wait here
DCP_REQUESTS_UNSENT_MAX: Final = 65_536
DCP_OPEN_NUMBERS_PER_REQUEST: Final = 16
REQUESTS_PER_EPOCH: Final = 2**36
DCP_REPEAT_MS_MIN: Final = 250
DCP_FRAME_MS_MAX: Final = 30_000  # from the first to the last byte of a frame
DCP_REPEAT_OPEN: Final = 64  # with this number of open requests to a node, repeats come half as often
DCP_PROGRESS_BYTES_MIN: Final = 16 * MIB  # the receiver reports the progress of transfers of this size
DCP_PROGRESS_FIRST_MS: Final = DCP_REPEAT_MS_MIN // 2
DCP_PROGRESS_PERIOD_MS: Final = 1_000
DCP_REPEAT_MS_MAX: Final = 2_000
DCP_WORKING_PERIOD_MS: Final = 1_000  # a node reports which new requests of another node wait there
DCP_WORKING_PERIOD_MS_MAX: Final = 8_000  # and reports them again at up to this interval, twice as long each
DCP_PATIENCE_MS: Final = 5_000  # without any sign of life, until a node counts as out of reach
DCP_UNCONFIRMED_MS: Final = 30_000  # until a request is lost that a living node neither answers nor reports
PROCESS_STALL_MS: Final = 1_500
DCP_BYTES_PER_MS_MIN: Final = 4_000
LOOKUP_PATIENCE_MS: Final = 1_500  # as DCP_PATIENCE_MS, for requests to all nodes
LOOKUP_UNCONFIRMED_MS: Final = 5_000  # as DCP_UNCONFIRMED_MS
LOOKUP_CACHE_MAX: Final = 65_536
LOOKUP_CACHED_NAMES_MAX: Final = 64
INDEX_COPIES: Final = 3  # index nodes of each name
INDEX_CONFIRMED_MIN: Final = 2  # of these, until a create is answered
INDEX_DIGEST_BYTES: Final = 8
INDEX_VIEW_BYTES: Final = 16
INDEX_DIGESTS_PER_MESSAGE: Final = 4_096
INDEX_NAMES_PER_NODE_MAX: Final = 65_536  # of a node at another; with more, lookups always ask the node
INDEX_COMPARED_MAX: Final = 256 * KIB  # digests of one lookup times nodes; beyond, it asks everybody
INDEX_REGISTRARS_MIN: Final = 32  # nodes with parts of the index; twice as many beyond its square
INDEX_UNREGISTERED_MAX: Final = 64  # nodes that an index node names because they have not registered there
INDEX_RECENT_MAX: Final = 64  # nodes that joined lately; lookups ask them, and with more of them everybody
INDEX_RECENT_MS: Final = 10_000  # within it, all nodes have heard of one that joined
INDEX_SETTLE_MS: Final = 300  # after a change of the members, until names are registered for it
INDEX_RETRY_MS: Final = 1_000
INDEX_LOST_MS: Final = 2 * DCP_UNCONFIRMED_MS  # after it, an open registration has been lost by a defect
INDEX_PATIENCE_MS: Final = 1_500  # that the answer to a create waits for one index node
PUBLISH_DELAY_MS: Final = 2
REMOTE_CACHE_PERCENT: Final = 10  # of the memory of the machine
REMOTE_CACHE_BYTES_MAX: Final = 256 * GIB
REMOTE_CACHE_VERSIONS_MAX: Final = 1_024
REMOTE_CACHE_READ_BYTES_MIN: Final = 32 * KIB  # below, bytes cost little more than keeping them
REMOTE_CACHE_UNUSED_MS_MAX: Final = 600_000
SMALL_CACHE_BYTES_MAX: Final = 64 * MIB  # kept ranges that are smaller than that
SMALL_CACHE_VERSIONS_MAX: Final = 4_096
LEASE_MS: Final = 2_000  # at the reader's node, from before its request on
LEASE_GRANTED_MS: Final = 2_100  # at the object's node, from the grant on
LEASE_PAUSE_MS: Final = 4_000  # after a call-back, until there are leases on the object again
LEASE_RETURN_MS: Final = 500  # that a node has to return a lease
LEASE_UNRETURNED_MS: Final = 60_000  # without leases for a node that has not returned one
LEASE_OBJECTS_MAX: Final = 4_096  # of this node, on which others have leases
LEASE_NODES_MAX: Final = 64  # with a lease on the same object
LEASES_PER_NODE_MAX: Final = 1_024
LEASES_HELD_MAX: Final = 4_096
REMOTE_TASK_GRACE_MS: Final = 30_000
RECONCILE_PERIOD_MS: Final = 20_000
RECONCILE_YOUNG_MS: Final = 10_000
OFFERED_GRACE_MS: Final = 25_000  # for references offered to a task whose node has not reported it
DISBANDED_GROUPS_MAX: Final = 1_024
UNSENT_NOTICES_MAX: Final = 1_024
RECONCILE_REFERENCES_MAX: Final = 16_384
RECONCILE_TASKS_MAX: Final = 512
REMOTE_TASKS_PER_NODE_MAX: Final = 16_384
PRINCIPALS_MAX: Final = 4_096
GROUPS_KNOWN_MAX: Final = 65_536
PEERS_MAX: Final = 2 * NODES_MAX

# -- the audit log --------------------------------------------------------------------------------
AUDIT_SEGMENT_BYTES: Final = 16 * MIB
AUDIT_RECORD_BYTES_MAX: Final = 64 * KIB
AUDIT_BUFFER_BYTES_MAX: Final = 1 * MIB
AUDIT_BACKLOG_BYTES_MAX: Final = 4 * MIB
AUDIT_SYNC_MS: Final = 100
AUDIT_MERGE_MS: Final = 1_000  # equal records of refusals within this time become one
AUDIT_MERGED_KEYS_MAX: Final = 1_024
AUDIT_BYTES_MIN: Final = 4 * AUDIT_SEGMENT_BYTES
AUDIT_BYTES_DEFAULT: Final = 16 * GIB
AUDIT_BYTES_MAX: Final = 1024 * GIB
AUDIT_AGE_MS_MIN: Final = 3600 * 1000
AUDIT_AGE_MS_MAX: Final = 100 * 366 * 24 * 3600 * 1000
AUDIT_RATE_BYTES_S_MIN: Final = 4 * KIB
AUDIT_RATE_BYTES_S_DEFAULT: Final = 256 * KIB
AUDIT_RATE_BYTES_S_MAX: Final = 1 * GIB
AUDIT_BURST_S: Final = 128  # seconds of a principal's rate that it may use at once
AUDIT_DEBTORS_MAX: Final = 8_192
AUDIT_HEAD_MS: Final = 5_000  # from one signed head of the log to the next
AUDIT_HEAD_STORED_MS_MIN: Final = 1_000  # from one head of another node that is stored to its next
AUDIT_HEAD_BYTES_MAX: Final = 512
AUDIT_HEADS_KEPT_MAX: Final = 32  # of one node; a node has up to NODES_MAX such files of about 12 KiB
AUDIT_HEADS_READ_MAX: Final = 100_000  # of a file of the operator's choice; of more, every second
AUDIT_HEAD_KEEPERS: Final = 3  # other nodes that are sent the heads of one
AUDIT_HEADS_ASKED_MS_MAX: Final = 2_000  # for which a node that starts waits for the heads that others keep
AUDIT_KEEPERS_ASKED_MAX: Final = 64  # other nodes that a node asks at its start

# -- MapReduce jobs -------------------------------------------------------------------------------
JOB_REDUCERS_MAX: Final = 64
JOB_MAPPERS_MAX: Final = 4_096
JOB_WORKERS_MAX: Final = 128
JOB_ATTEMPTS_MAX: Final = 16
JOB_CHUNK_PAIRS: Final = 32_768
JOB_UNREAD_STREAMS_MAX: Final = 256
JOB_REPORT_RING_BYTES: Final = 4 * KIB
JOB_REPORT_PERIOD_MS: Final = 100
JOB_END_TIMEOUT_MS: Final = 1_000
JOB_HEARTBEAT_MS: Final = 1_000
JOB_COPY_AFTER_MS: Final = 5_000  # a mapper that has run for less is not copied
JOB_RECORD_BLOCK_BYTES: Final = 32 * KIB
JOB_BLOCK_BYTES_DEFAULT: Final = 32 * MIB
JOB_SPLIT_BYTES: Final = 256 * MIB
JOB_INPUT_BYTES_MAX: Final = 1 * GIB
JOB_WINDOW_BYTES: Final = 16 * MIB
JOB_PACK_BYTES: Final = 32 * MIB
JOB_INPUTS_MAX: Final = 250
JOB_MEMORY_BYTES_DEFAULT: Final = 1 * GIB
JOB_MEMORY_BYTES_MIN: Final = 64 * KIB
JOB_PAIR_BYTES: Final = 160
JOB_RUNS_MAX: Final = 256
JOB_KEEP_MAX: Final = 5  # nodes that keep the pairs of a mapper
JOB_SAVE_PERIOD_MS: Final = 500  # between two saved states of a controller
JOB_FETCH_BYTES: Final = 64 * KIB

# -- libraries ------------------------------------------------------------------------------------
RETRY_PAUSE_US_MIN: Final = 50
RETRY_PAUSE_US_MAX: Final = 10_000
LOCK_LEASE_MS_MAX: Final = 24 * 3600 * 1000
RETRY_S_MAX: Final = 30
INDEX_BYTES_MAX: Final = 16 * MIB
INDEX_COPIES_MAX: Final = 9
STORE_REPLACE_AFTER_S: Final = 600  # a host of a kept store is away until it is replaced
STORE_KEEPER_LOOK_MS: Final = 2_000  # between two looks at the members
INDEX_SHARDS_MAX: Final = 1_024
KEY_BYTES_MAX: Final = 1 * KIB
VALUE_LOOKUPS_MAX: Final = 100

# -- flow problems --------------------------------------------------------------------------------
FLOW_VERTICES_MAX: Final = 2**24
FLOW_ARCS_MAX: Final = 2**28
FLOW_UNBOUNDED: Final = 2**62
FLOW_VOLUME_MAX: Final = 2**58
FLOW_PRICE_MAX: Final = 2**60
FLOW_LINE_CHARS_MAX: Final = 4_096

# -- machines and profiles ------------------------------------------------------------------------
TOPOLOGY_CPUS_MAX: Final = 4_096
TOPOLOGY_ELEMENTS_MAX: Final = 32_768
TOPOLOGY_TEXT_BYTES_MAX: Final = 256
PROFILE_TEXT_BYTES_MAX: Final = 256
PROFILE_PROCESSES_MAX: Final = 1_024
PROFILE_THREADS_MAX: Final = 4_096
PROFILE_PROPORTIONAL_BYTES_MAX: Final = 1 * GIB
PROC_FILE_BYTES_MAX: Final = 1 * MIB
COUNTER_DESCRIPTORS_MAX: Final = 512
PROFILE_BUCKETS_MAX: Final = 96
PROFILE_SAMPLES_MAX: Final = 32
PROFILE_NEIGHBOURS_MAX: Final = 64
KNOWLEDGE_PROFILES_MAX: Final = 2_048
KNOWLEDGE_PAIRS_MAX: Final = 16_384
KNOWLEDGE_REPORTS_MAX: Final = 4_096
KNOWLEDGE_JOURNAL_MAX: Final = 8_192
KNOWLEDGE_BATCH_MAX: Final = 512
KNOWLEDGE_BATCH_BYTES: Final = 256 * KIB
KNOWLEDGE_ORIGINS_MAX: Final = 1_024
KNOWLEDGE_GAPS_MAX: Final = 256
KNOWLEDGE_BYTES_MAX: Final = 1 * GIB
KNOWLEDGE_BLOCKS_MAX: Final = 65_536
KNOWLEDGE_HOLDERS_MAX: Final = 64
USAGE_PROFILE_INSTANTS_MAX: Final = 256  # of one task; instants of longer tasks are longer
USAGE_PROFILE_INSTANT_S_MAX: Final = 2**20
USAGE_PROFILE_CHANNELS_MAX: Final = 8
USAGE_PROFILE_RUNS_MAX: Final = 8  # of a task of a job; the latest count
USAGE_PROFILE_MEMBERS_MAX: Final = 16_384
USAGE_PROFILES_BYTES_MAX: Final = 32 * MIB
TRACED_TASKS_MAX: Final = 256  # tasks of admitted jobs on one node
JOB_TRAFFIC_TASKS_MAX: Final = 65_536  # on all nodes of a coordinator

# -- scheduling -------------------------------------------------------------------------------------
WORK_NEAR_MAX: Final = 16
NEAR_BYTES_MIN: Final = 1 * MIB  # a run with less input goes where there is room, as if it had none
WORK_CONSTRAINTS_MAX: Final = 16
ENFORCED_MAX: Final = 16  # resources that a node can hold a task to
DEVICES_MAX: Final = 64  # devices of a node, of all kinds together
DEVICE_KINDS_MAX: Final = 8
DEVICE_KIND_CHARS_MAX: Final = 32
DEVICE_FILES_MAX: Final = 8  # files of one device
PINNED_PROCESSORS_MAX: Final = 8192  # processors of one pinned task
QUEUE_ROWS_MAX: Final = 1024
QUEUE_TASKS_MAX: Final = 512  # living tasks in one answer
QUEUE_REPLY_BYTES_MAX: Final = 160 * KIB  # of one answer, by estimate
QUEUE_WAIT_MS_MAX: Final = 60_000
QUEUE_LEASE_MS: Final = 5_000  # a scheduler must ask again within this time, or runs stop waiting for it
SCHEDULER_PROGRESS_MS: Final = (
    15_000  # a run that its node could start is placed within this, or a reason is given
)
SCHEDULER_HOLD_MS_MAX: Final = 600_000  # a reason holds for no longer than this without any placement
SCHEDULER_BARRED_MS: Final = 30_000  # the first time without a lease; it doubles
SCHEDULER_BARRED_MS_MAX: Final = 3_600_000
SCHEDULER_FORGIVEN_MS: Final = 86_400_000  # a lost lease is forgotten after this
SCHEDULERS_BARRED_MAX: Final = 8  # schedulers that a node's row names
ADMISSION_TOTALS_MS: Final = 60_000  # without news, holdings on other nodes count for this long
ADMISSION_WAITING_MS: Final = 30_000  # the same for the principals whose runs wait
QUOTAS_MAX: Final = 1_024  # principals with a quota
PRINCIPALS_WAITING_MAX: Final = 2
COORDINATOR_PENDING_MAX: Final = NODES_MAX + PENDING_PER_TASK_MAX  # it waits for a change of each queue
QUEUE_LABEL_CHARS_MAX: Final = 64
QUEUE_ENDED_KEPT: Final = 256
QUEUE_GONE_KEPT: Final = 4_096  # runs and tasks that have left a queue
SCHEDULER_QUESTIONS_MAX: Final = 64
SCHEDULER_QUESTION_BYTES_MAX: Final = 32 * KIB
SCHEDULER_QUESTIONS_BYTES_MAX: Final = 64 * KIB  # of all waiting questions
SCHEDULER_REPORTS_KEPT: Final = 4
SUBMISSIONS_MAX: Final = 65_536
STARTS_WAITING_MAX: Final = 4_096  # runs that wait on a node for room; principals divide them equally
SCHEDULER_TIMEOUT_MS: Final = 15_000  # for the answer to a question
ADVICE_BYTES_MAX: Final = 128 * KIB
NODE_LABELS_MAX: Final = 32
NODE_LABELS_CHARS_MAX: Final = 512  # of all labels of a node, as text; they travel with its row
LOAD_HOLD_MS: Final = 10_000  # a level of load from outside counts once it has been measured for this time
MEMORY_SHORT_PERCENT: Final = 90  # of the memory in use, by anything: the machine counts as full
MEMORY_PLENTY_PERCENT: Final = 80  # below this again, it does not
RATES_MAX: Final = 1_024  # of one node
GUARANTEES_MAX: Final = 512  # of one node
HELD_PARTS_MAX: Final = 128  # members of jobs over time that are held to their parts of a node
GUARANTEE_STEPS_MAX: Final = 8  # of one guarantee; they need not reach beyond the lease
GUARANTEE_PERIOD_MS: Final = 20  # a link is divided again this often while guarantees hold
GUARANTEE_PERIOD_MS_MIN: Final = 5  # the shortest time between two divisions of a link
GUARANTEE_WINDOW_MS: Final = 100  # the demand of a sender is measured over the last one to two windows
GUARANTEE_HEADROOM_PERCENT: Final = 12  # above the rate of a sender that its receiver slows
GUARANTEE_IDLE_MS: Final = 25  # a sender that had nothing to send for this time has no demand
GUARANTEE_BURST_MS: Final = 30
GUARANTEE_DEBT_MS_MAX: Final = 100  # the longest wait for bytes that were sent at a higher rate
GUARANTEE_PIECE_MS: Final = 10  # a transfer is sent in pieces that take this long
GUARANTEE_PIECE_BYTES_MIN: Final = 16 * KIB
GUARANTEE_INLINE_BYTES_MIN: Final = 1 * KIB  # a smaller message is not counted
GUARANTEE_BYTES_S_MIN: Final = 16 * KIB  # for everybody else, where guarantees take all of a link
GUARANTEE_WEIGHT_OTHERS: Final = 500  # of 1000; the weight of a principal without a guarantee
GUARANTEED_CONNECTIONS_MAX: Final = 64  # to one node, for tasks with a guarantee
SHAPE_HEADERS_PERCENT: Final = 6  # added by TCP, IP, Ethernet and TLS to the content
SHAPE_BURST_MS: Final = 10
SHAPE_BURST_BYTES_MIN: Final = 64 * KIB
SHAPE_WAIT_MS: Final = 50  # a packet that waits longer in the kernel is dropped
RATES_LEASE_MS_MAX: Final = 60_000
RATES_METERED_MAX: Final = 3 * 1_024
RATE_BYTES_S_MIN: Final = DATA_PIECE_BYTES  # lower rates are raised to this, so that calls end
RATE_BYTES_S_MAX: Final = 1024 * GIB
RATE_BURST_MS: Final = 100
HELD_REQUESTS_MAX: Final = 1_024  # of other nodes, for principals that stored more than their rates allow
CAPACITY_PIECE_BYTES: Final = 1 * MIB  # of a measurement of a link or disk
DISK_PROBE_BYTES: Final = 64 * MIB  # at most, written to measure a disk, and read again
DISK_PROBE_MS: Final = 300  # at most, for each of both; a single piece may take longer
DISK_PROBE_PIECES: Final = 4  # that are made durable together
LOOPBACK_PROBE_BYTES: Final = 256 * MIB
LOOPBACK_PROBE_MS: Final = 100
CAPACITY_TIMEOUT_MS: Final = 10_000  # for a piece through the loopback
CAPACITY_PAUSE_MS_MIN: Final = 5_000  # until the next measurement, if the machine was busy or one failed
CAPACITY_PAUSE_MS_MAX: Final = 600_000
CAPACITY_BUSY_ATTEMPTS_MAX: Final = 8  # measurements of a machine that is always busy; the best one counts
CAPACITY_LOOK_MS: Final = 30_000  # between two looks at the most seen
CAPACITY_CHANGE_PERCENT: Final = 10  # a smaller change is not announced to schedulers
RATE_SOLVE_MS_MAX: Final = 250  # of a control interval, for its shares: exact ones, or DC-DRF's deadline
RATE_SLOW_SOLVES: Final = 2  # intervals one after the other whose exact shares took longer: then DC-DRF
RATE_CALM_SOLVES: Final = 10  # such intervals in which exact shares take half of that time: then exact ones
RATE_RETRY_SOLVES: Final = 600  # slow intervals until DC-DRF is tried again, after it was not faster
RATE_PROBE_PERCENT: Final = 10  # above the best rate seen, where no capacity is configured
RATE_POLL_MS: Final = 500  # a delayed sender is checked this often: it may have closed its connection
RATE_IDLE_PERCENT: Final = 10  # a second with more idle time does not count as a measurement of the capacity
SHARES_BYTES_MAX: Final = 64 * KIB
PACKED_JOBS_MAX: Final = 256  # jobs with demands over time, in a cluster
PACKED_MEMBERS_MAX: Final = 512  # of one job
PACKED_CELLS_MAX: Final = 2**21  # demands and bandwidths of one job, over all of its instants
PACKED_JOBS_BYTES_MAX: Final = 40 * KIB  # of all jobs, as coordinators exchange them
PACKED_TEXT_BYTES_MAX: Final = 1 * MIB  # of one job, in TOML
PACKED_INSTANT_S: Final = 2.0  # the length of one instant in the reservations of a cluster
PACKED_HORIZON_INSTANTS: Final = 4_096  # the number of instants that reservations reach ahead
PACKED_WAIT_S_MAX: Final = PACKED_INSTANT_S * PACKED_HORIZON_INSTANTS  # the longest wait of a job
PACKED_NOTICE_INSTANTS: Final = 2  # the least time before a start, in which the waiting user learns of it
PACKED_LEASE_S: Final = 30.0  # a job without running tasks ends when its user does not renew it for this long
GANG_TASKS_MAX: Final = 64  # of one `dios run`
JOB_BOUND_MAX: Final = 2**31 - 1  # of the running tasks of a job, which its runs name
RACK_DELEGATION_MS: Final = 2_000  # a rack places its own runs first, for this time
PROFILED_TASKS_MAX: Final = 256
PROFILED_NEIGHBOURS_MAX: Final = 16
COORDINATOR_MEMORY_BYTES: Final = 8 * GIB  # address space: Numba reserves much of it and uses little
COORDINATOR_RESTART_MS_MIN: Final = 200  # before the first restart; doubled each time
COORDINATOR_RESTART_MS_MAX: Final = 30_000
COORDINATOR_STABLE_MS: Final = 60_000  # a run this long resets the pause before a restart

# -- metrics --------------------------------------------------------------------------------------
EXPORTER_RESTART_MS_MIN: Final = 500  # before the first restart; doubled each time
EXPORTER_RESTART_MS_MAX: Final = 60_000
EXPORTER_STABLE_MS: Final = 60_000
EXPORTER_ERROR_BYTES_MAX: Final = 4 * KIB  # of its last words
EXPORTER_CONNECTIONS_MAX: Final = 32
EXPORTER_REQUEST_MS_MAX: Final = 10_000  # for each part of a request

# -- the dashboard --------------------------------------------------------------------------------
DASHBOARD_BROWSERS_MAX: Final = 16  # the first of them goes for the next
DASHBOARD_CONNECTIONS_MAX: Final = 256

# -- the cluster scheduler ------------------------------------------------------------------------
SCHED_ABANDONED_THREADS_MAX: Final = 3
SCHED_HISTORY_MAX: Final = 1_024
SCHED_CLASS_DEPTH_MAX: Final = 64
SCHED_MISFIT_FILTERS_MAX: Final = 16
SCHED_KEPT_FILTERS_MAX: Final = 256
SCHED_EVICTORS_MAX: Final = 64
SCHED_FAULTS_MAX: Final = 100
FAIRNESS_MEMORY_MS_DEFAULT: Final = 1_000_000_000  # the SDRF paper's best discount: 1 - 1e-6 per second
FAIRNESS_MEMORY_MS_MIN: Final = 1_000
FAIRNESS_MEMORY_MS_MAX: Final = 10 * 365 * 86_400_000
GROUP_SHARES_PER_SESSION_MAX: Final = 64  # groups of others that a session may read
SEALED_TOKEN_CAVEATS_MAX: Final = 16
SEALED_TOKEN_PATH_CHARS_MAX: Final = 1_024  # of a path in a caveat
SEALED_TOKEN_BYTES_MAX: Final = 8 * KIB
SEALED_TOKEN_TEXT_CHARS_MAX: Final = 12_000
TRUSTED_CLUSTERS_MAX: Final = 64
BORDER_FRAME_BYTES_MAX: Final = 512 * KIB
BORDER_PART_BYTES: Final = 256 * KIB  # of a file, in one frame
BORDER_LIST_BYTES: Final = 256 * KIB  # of a list of files, in one frame
BORDER_READ_BYTES_MAX: Final = 1024 * MIB  # of a file that a program reads at once
BORDER_WRITE_BYTES_MAX: Final = 64 * MIB  # of a file that a token writes
BORDER_WRITE_MS_MAX: Final = 120_000
BORDER_SLOW_MS_MAX: Final = 5_000  # for which a caller may keep a border waiting, and longer with its bytes
BORDER_RATE_BYTES_S_MIN: Final = 64 * KIB
BORDER_PLACE_MS_MAX: Final = 30_000  # until a call has a place
BORDER_CONNECTIONS_MAX: Final = 64  # of programs of this machine, and as many of other clusters
BORDER_HANDSHAKES_AT_ONCE_MAX: Final = 64
BORDER_HANDSHAKES_S: Final = 50  # with all addresses from which no trusted cluster came
BORDER_HANDSHAKES_EACH_S: Final = 20  # with one address
BORDER_ADDRESSES_MAX: Final = 1_024  # of which a border remembers the handshakes
BORDER_REQUESTS_S: Final = 50  # of one other cluster, and of one user
BORDER_REQUESTS_BURST: Final = 200
BORDER_IDLE_MS_MAX: Final = 30_000  # until the next frame
SHARES_PRINCIPALS_MAX: Final = 1_024  # principals whose shares coordinators exchange
SHARES_WEIGHT_MAX: Final = 1_000
SHARES_FORGOTTEN_S: Final = 30 * 86_400  # a principal that has run nothing for this long has no share
SDRF_CHANGES_MAX: Final = 1_024  # changes of a user's share that are kept for exact comparisons
SDRF_EXACT_BITS_MAX: Final = 2**21  # digits of powers of delta that are compared as whole numbers
FAIR_QUEUE_TIMEOUT_S: Final = 10.0  # the longest time for which others wait for one large task
RESERVATIONS_MAX: Final = 64  # tasks that have machines reserved
RESERVATION_UNKNOWN_S: Final = 60.0  # a task of unknown run time is expected to go on for this, at least
PRIORITY_AGE_S: Final = 600.0  # waiting for this long counts as one step of priority
FAIR_QUEUE_EXEMPT_MAX: Final = 64  # tasks of one principal that stay in the network without reserved room
BACKLOG_SPARE_TASKS: Final = 64  # of each principal in the tables of a round, beyond those that may start
BACKLOG_KIND_TASKS: Final = 8  # the same, of one kind
FIRST_FIT_KINDS_MAX: Final = 4_096  # kinds of needs at which one round of the simple rule looks
BACKLOG_PRINCIPALS: Final = 16  # principals with tasks in the tables, if more wait
EXPLAIN_S: Final = 0.5  # the time in which changes are solved that would place one task
EXPLAIN_SHARE: Final = 0.1  # the part of the scheduler's time after which such changes are not tried
EXPLAIN_ROUNDS: Final = 4  # rounds in which a change has to place the task
EXPLAIN_NODES: Final = 8  # machines whose free amounts an explanation lists
EXPLAIN_ENDS: Final = 4  # machines of which the next known ends are tried
EXPLAIN_PAIRS: Final = 8  # of amounts, tried for each pair of resources
SCHED_MODEL_BYTES_MAX: Final = 16 * KIB  # of an operator's own cost model
SCHED_MODEL_MEMORY_BYTES: Final = 1 * GIB  # of the task that runs it
SCHED_MODEL_PROFILES_MAX: Final = 512  # measured profiles that are sent to it in one round
SCHED_MODEL_PAIRS_MAX: Final = 4_096  # co-runners, likewise
SCHED_EXPORT_ARCS_MAX: Final = 2_000

# -- supervised services ------------------------------------------------------------------------------
SERVICES_MAX: Final = 64  # supervised services of one principal
SERVICE_REPLICAS_MAX: Final = 64
SERVICE_INPUTS_MAX: Final = 16
SERVICE_GROUPS_MAX: Final = 16
SERVICE_INPUT_BYTES_MAX: Final = 256 * MIB  # of all inputs of a service together; each node keeps a copy
SERVICE_RECORDS_BYTES_MAX: Final = MIB  # of all services of one principal
SERVICE_DROPPED_MAX: Final = 256  # objects of earlier versions that nodes may still have
SERVICE_REMOVED_KEPT: Final = 64  # removed services that are remembered, for nodes that return
SERVICE_ROUND_MS: Final = 500  # between two rounds of the supervisor
SERVICE_LOOK_MS: Final = 2_000  # between two looks for users with services, also of a node without any
SERVICE_SETTLE_MS: Final = 3_000  # a node leads this long, in its own view, before it acts
SERVICE_REPAIR_MS: Final = 10_000  # between two comparisons of all copies of the records
SERVICE_START_MS_MAX: Final = 15_000  # for a start on one node, before another node is tried
SERVICE_STARTS_MAX: Final = 192  # that a supervisor waits for at once, each in a call of its only session
SERVICE_STARTS_QUEUED_MAX: Final = 128  # of those that wait for the scheduler, without a bound of their time
SERVICE_RESTART_MS_MIN: Final = 500  # before the first restart; doubled each time
SERVICE_RESTART_MS_MAX: Final = 60_000
SERVICE_STABLE_MS: Final = 30_000  # a replica that ran this long is restarted without a longer pause
SERVICE_HEALTHY_MS: Final = 1_000  # by default a replica counts as healthy when it has run this long
SERVICE_SPAN_MS_MAX: Final = 3_600_000  # of the times that a service may choose
SERVICE_CHECK_MS_MAX: Final = 10_000  # for one run of a health check
SERVICE_CHECK_EVERY_MS: Final = 5_000
KEPT_JOB_ATTEMPTS_MAX: Final = 1000  # of a kept job that fails by itself
KEPT_JOB_ATTEMPTS: Final = 3
JOB_AFTER_MAX: Final = 64  # runs after which a job begins
JOB_INDEX_MAX: Final = 9_999  # of an element of an array
JOB_ELEMENTS_MAX: Final = 1_000  # of all arrays of one principal that are listed
JOB_ARRAY_AT_ONCE_MAX: Final = 64  # elements of an array that run or wait for their place
JOB_ELEMENT_DETAIL_MAX: Final = 100  # characters of the reason of an element's end
KEPT_JOB_DETAIL_MAX: Final = 2000  # characters of the reason of its end
KEPT_JOB_OUTPUT_BYTES_MAX: Final = 256 * KIB  # of its last output, which all nodes keep after its end
KEPT_JOB_STATE_BYTES_MAX: Final = MIB  # of what its program saves for its next attempt
KEPT_JOB_SECTIONS_MAX: Final = 256  # parts of this state for libraries within the program
KEPT_JOB_SECTION_NAME_MAX: Final = 64  # characters
KEPT_JOB_OBJECTS_MAX: Final = 8192  # objects that end with a job, if its program has left them
SERVICE_CHECKS_FAILED_MAX: Final = 3  # failed checks in a row, before a replica is replaced

# -- kept replicas ------------------------------------------------------------------------------------
KEPT_REPLICAS_MAX: Final = 16
KEPT_PROMISES_MAX: Final = 2_048  # promises of one principal
KEPT_ENDED_KEPT: Final = 256  # promises that were taken back, remembered for nodes that return
KEPT_WRITTEN_MAX: Final = 512  # objects of which the versions of replicas are remembered
KEPT_SEEN_MAX: Final = 32  # versions of the replicas of one object
KEPT_DIGEST_BYTES: Final = 16
KEPT_DIGESTS_MAX: Final = 16_384  # digests that a keeper remembers
KEPT_ROUND_MS: Final = 500  # between two rounds of the keeper
KEPT_LOOKS: Final = 2  # objects that a round looks at while nothing changes
KEPT_LOOKS_MAX: Final = 32  # objects that a round looks at after a change
KEPT_LOOKS_AT_ONCE: Final = 8
KEPT_COPIES_AT_ONCE: Final = 2
KEPT_AGAIN_MS: Final = 1_000  # between two looks at an object that is short of its promise
KEPT_WAITING_MAX: Final = 1_024  # such objects that wait for that; further ones wait for their turn
KEPT_REFUSED_MS: Final = 60_000  # a node that refused a copy is passed over for this long
KEPT_DAMAGED_MS: Final = 120_000  # for which a damaged replica does not count
KEPT_DAMAGED_MAX: Final = 4_096  # damaged replicas that a keeper remembers
KEPT_CHUNK_BYTES: Final = MIB  # read at once for a digest
KEPT_COMPARED_MAX: Final = 131_072  # replicas of which a keeper remembers that their bytes were compared
KEPT_COMPARED_MS: Final = 300_000  # for which this is enough to destroy another replica
KEPT_COMPARES_AT_ONCE: Final = 2
KEPT_NOTES_AT_ONCE: Final = 256  # former files that are destroyed before one edit of their list
KEPT_ENDED_LOOK_MS: Final = 15_000  # between two looks at the lists of groups whose promise has ended
KEPT_SHOWN_MAX: Final = 64  # objects that a report names
KEPT_REMOVED_SHOWN_MS: Final = 86_400_000  # for which a report names a replica that had other bytes
KEPT_SHORT_MAX: Final = 4_096  # objects that a report counts as short of their promise
KEPT_RECORDS_BYTES_MAX: Final = 2 * MIB  # of all promises of one principal
KEPT_LIST_BYTES_MAX: Final = 16 * MIB  # of the catalogue of a group with a promise
KEPT_LIST_REPLICAS: Final = 3  # of the catalogue of a group with a promise of two
KEPT_STRAY_MS: Final = 30_000  # a replica of a catalogue that is not added within this time is destroyed
KEPT_LISTED_AT_ONCE: Final = 1_024
KEPT_GRACE_MS_DEFAULT: Final = 300_000
KEPT_GRACE_MS_MIN: Final = 1_000
KEPT_GRACE_MS_MAX: Final = 86_400_000
KEPT_RATE_BYTES_S_DEFAULT: Final = 64 * MIB
KEPT_RATE_BYTES_S_MIN: Final = 64 * KIB
KEPT_RATE_BYTES_S_MAX: Final = 64 * GIB

# -- scrubbing ------------------------------------------------------------------------------------
SCRUB_RATE_BYTES_S_DEFAULT: Final = 8 * MIB
SCRUB_RATE_BYTES_S_MIN: Final = 64 * KIB
SCRUB_RATE_BYTES_S_MAX: Final = 64 * GIB
SCRUB_EVERY_MS_DEFAULT: Final = 7 * 86_400_000
SCRUB_EVERY_MS_MIN: Final = 1_000
SCRUB_EVERY_MS_MAX: Final = 366 * 86_400_000
SCRUB_SLICE_BYTES: Final = MIB  # read at once, then the rate is applied
SCRUB_ROWS_MAX: Final = 256  # rows that are read at once
SCRUB_ROW_BYTES: Final = 4 * KIB  # a row counts as at least a page of the database
SCRUB_DAMAGED_MAX: Final = 256  # objects in the report; further ones are counted
SCRUB_WITHHELD_MAX: Final = 4_096  # damaged objects that are not read without a call until the node restarts
SCRUB_REPORT_BYTES_MAX: Final = MIB  # of the file with the report
SCRUB_PROBLEM_CHARS_MAX: Final = 500  # of one reason in it
SCRUB_REPAIRED_KEPT_MS: Final = 30 * 86_400_000  # a repaired object stays in the report for this long
SCRUB_SAVE_MS: Final = 60_000  # between two writes of the position; also before the first pass of a start
SCRUB_FETCH_MS_MAX: Final = 60_000  # for the bytes of a replica, in addition to eight times their transfer
SCRUB_RETRY_MS_MIN: Final = 10_000  # between two attempts to repair an object; doubled each time
SCRUB_RETRY_MS_MAX: Final = 3_600_000

# -- packing --------------------------------------------------------------------------------------
PACKER_NODES_MAX: Final = 4_096  # tasks and services of one job
PACKER_EDGES_MAX: Final = 65_536
PACKER_INSTANTS_MAX: Final = 4_096
PACKER_CELLS_MAX: Final = 2**24  # demands of one job, over all its instants
PACKER_AMOUNT_MAX: Final = 1e15
PACKER_SERVERS_MAX: Final = 1_000_000
PACKER_STATE_MAX: Final = 2**30  # cells of the free capacity of a data centre, over all instants
PACKER_TRIES_MAX: Final = 64  # servers tried for one task when the paths to the best have no room
PACKER_STARTS_MAX: Final = 128  # starts in the future at which places for a waiting job are looked for
PACKER_ROUNDS_MAX: Final = 32  # of water-filling, before breakpoints are sorted
PACKER_TEXT_BYTES_MAX: Final = 16 * MIB  # of a job in TOML

# -- network functions ------------------------------------------------------------------------------
SPRAYER_CORES_MAX: Final = 64
SPRAYER_BATCH: Final = 64  # packets that a worker takes at once, from an interface or from other workers
SPRAYER_BATCH_MIN: Final = 2
SPRAYER_BATCH_CYCLES: Final = 50_000  # a worker receives as many packets as take about this time
SPRAYER_RING: Final = 512  # frames of one core that another core has at the same time; a power of two
SPRAYER_FRAME_BYTES_MAX: Final = 65_535
SPRAYER_EXTENSIONS_MAX: Final = 8  # IPv6 headers before that of TCP, UDP or ICMP
SPRAYER_FLOWS_MAX: Final = 2**26  # of one core's table
SPRAYER_ENTRY_BYTES_MAX: Final = 256  # of the state of a flow
SPRAYER_PROBES_MAX: Final = 64  # table slots searched for a flow
SPRAYER_STEER_PAUSE_MAX: Final = 256
"""The most samples of half a second between two trials of another steering."""
SPRAYER_QUIC_PORTS_MAX: Final = 4  # of UDP, at which QUIC is recognised
SPRAYER_QUIC_ID_BYTES_MAX: Final = 20  # of a connection id in versions 1 and 2
SPRAYER_QUIC_IDS_MAX: Final = 4  # ids of a connection that are stored
SPRAYER_QUIC_LENGTHS_MAX: Final = 4  # lengths of ids that a core learns
SPRAYER_WATCHED: Final = 256  # directions of flows whose progress a core records; a power of two
SPRAYER_READ_RETRIES_MAX: Final = 100_000  # of an entry that its owner is changing
SPRAYER_WAITING: Final = 64  # fragments of a core that wait for the first part; at most SPRAYER_BATCH
SPRAYER_WAITING_BYTES: Final = 9216  # of one of them, where it is copied
SPRAYER_WAITING_S: Final = 2  # until it is dropped
SPRAYER_DATAGRAMS: Final = 1024  # whose fragments are followed; a power of two
SPRAYER_DATAGRAM_S: Final = 10  # for which a datagram that does not become complete is followed
SPRAYER_EXPIRY_STEP: Final = 64  # table slots searched for expired flows, with each batch
SPRAYER_BLOCK: Final = 1024  # table slots that are written for other hosts at once
SPRAYER_HOSTS_MAX: Final = 16  # that share a function
SPRAYER_BEAT_S: Final = 0.5  # between two rounds of writing for other hosts
SPRAYER_LEASE_S: Final = 4.0  # without a written beat, after which a host stops by itself
SPRAYER_TAKEOVER_S: Final = 6.0  # without a beat of its owner, after which a host takes a function over
SPRAYER_REPLAY_BYTES: Final = 16 * MIB  # of frames in memory at once, when a file is replayed
SPRAYER_COMPILED_BYTES: Final = 256 * MIB  # of compiled functions of a user on disk
SPRAYER_COMPILING_S: Final = (
    120.0  # for which a process waits for another one that compiles the same function
)
SPRAYER_PATTERNS_MAX: Final = 4096
SPRAYER_PATTERN_BYTES_MAX: Final = 1024  # of one pattern
SPRAYER_AUTOMATON_BYTES_MAX: Final = 256 * MIB
SPRAYER_STREAM_WINDOW_MIN: Final = 65_536  # of a stream that is inspected: no window without scale is larger
SPRAYER_STREAM_WINDOW_MAX: Final = 4 * MIB
SPRAYER_INSPECTION_BYTES_MAX: Final = 16 * 1024 * MIB  # of the rings of all inspected streams
SPRAYER_ALERTS_KEPT: Final = 64  # of each core; a power of two
SPRAYER_PACKET_ALERTS_MAX: Final = 16  # matches of a packet that are listed
SPRAYER_PLACES: Final = 2048  # frames of one core and interface that wait or are processed
SPRAYER_PLACES_MAX: Final = 65_536
SPRAYER_INTERFACES_MAX: Final = 16
SPRAYER_QUEUES_MAX: Final = 16  # receive queues of an interface
SPRAYER_SEND_CALLS_MAX: Final = 16  # for one batch of frames that the kernel takes in parts
SPRAYER_QUEUE_FREE_MS: Final = 2000  # until the kernel frees a queue whose sockets are closed
SPRAYER_SPINS_MAX: Final = 64  # polls of empty interfaces, one after the other, before a core waits
SPRAYER_LONG_WAIT_SPINS: Final = 256  # such polls after which it waits for longer
SPRAYER_NICE: Final = -15  # of workers that have a processor of their own
SPRAYER_WAIT_US: Final = 100
SPRAYER_WAIT_LONG_US: Final = 1000
SPRAYER_ANSWER_BYTES_MAX: Final = MIB  # of the statistics of a running function


# -- shared places --------------------------------------------------------------------------------
def may_take(own: int, used: int, places: int) -> bool:
    """Return True if a holder may take one more place: it has fewer than are free.

    ``own`` of the ``used`` places are the holder's. So one greedy holder gets half of all places, the next
    one half of the rest, and a holder without a place finds one.
    """
    return own < places - used


class Sharing(enum.Enum):
    """The way in which the holders of places share them."""

    HALF_OF_THE_REST = "a holder has at most as many places as are free (may_take)"
    TURNS = "a place is held for one piece of work, and holders take turns"
    OLDEST = "the oldest place goes for the next, first of the holder with the most"
    EQUAL_PARTS = "a holder has at most an equal part, or half if it is alone"
    LARGE_PART = "a holder has at most a fixed part"


class Pool(NamedTuple):
    """A bounded number of places of one node that several holders want."""

    places: int
    holder: str
    sharing: Sharing


POOLS: Final[Mapping[str, Pool]] = MappingProxyType(
    {
        "sessions of other users": Pool(
            CONNECTIONS_MAX - CONNECTIONS_RESERVED, "user", Sharing.HALF_OF_THE_REST
        ),
        "connections of programs at a border": Pool(BORDER_CONNECTIONS_MAX, "user", Sharing.HALF_OF_THE_REST),
        "connections of clusters at a border": Pool(
            BORDER_CONNECTIONS_MAX, "cluster", Sharing.HALF_OF_THE_REST
        ),
        "calls sent on to a cluster": Pool(16, "user", Sharing.HALF_OF_THE_REST),
        "writes at a border": Pool(8, "cluster, user and token", Sharing.HALF_OF_THE_REST),
        "streams between nodes": Pool(PEER_STREAMS_MAX, "principal, or node", Sharing.HALF_OF_THE_REST),
        "bytes that arrive from nodes": Pool(DCP_RECEIVING_BYTES_MAX, "node", Sharing.LARGE_PART),
        "look-ups of host names": Pool(NETWORK_RESOLVERS_MAX, "principal", Sharing.HALF_OF_THE_REST),
        "copies in threads": Pool(COPIES_AT_ONCE_MAX, "principal, then task", Sharing.TURNS),
        "starts of processes": Pool(SPAWNS_AT_ONCE_MAX, "principal, then task", Sharing.TURNS),
        "transfers to a node": Pool(DATA_CONNECTIONS, "principal, then task", Sharing.TURNS),
        "handshakes at a node": Pool(HANDSHAKES_AT_ONCE_MAX, "address", Sharing.OLDEST),
        "handshakes at a border": Pool(BORDER_HANDSHAKES_AT_ONCE_MAX, "address", Sharing.OLDEST),
        "readers of metrics": Pool(EXPORTER_CONNECTIONS_MAX, "connection", Sharing.OLDEST),
        "runs that wait for room": Pool(STARTS_WAITING_MAX, "principal", Sharing.EQUAL_PARTS),
        "network streams": Pool(NETWORK_SOCKETS_MAX, "principal", Sharing.HALF_OF_THE_REST),
    }
)
"""The pools of places for which users, clusters, nodes or strangers compete. Each has a test."""

assert TASKS_MAX + ENDED_TASKS_KEPT <= TASK_ROWS_MAX, "one answer lists every task of a principal"  # noqa: S101
assert QUEUE_TASKS_MAX + QUEUE_ENDED_KEPT <= QUEUE_ROWS_MAX, "tasks fit the answer about a queue"  # noqa: S101
assert (  # noqa: S101
    RATES_MAX * 80 + GUARANTEES_MAX * (96 + 15 * GUARANTEE_STEPS_MAX) + HELD_PARTS_MAX * 28 + SHARES_BYTES_MAX
    < FRAME_BYTES_MAX
), "rates, guarantees and shares fit one frame"
assert QUOTAS_MAX * 190 < FRAME_BYTES_MAX, "quotas fit one frame"  # noqa: S101
assert SEALED_TOKEN_BYTES_MAX * 4 // 3 + 16 < SEALED_TOKEN_TEXT_CHARS_MAX, "every token has a text"  # noqa: S101
assert PACKED_JOBS_BYTES_MAX < SHARES_BYTES_MAX, "jobs are sent together with shares"  # noqa: S101
assert INLINE_BYTES_MAX < FRAME_BYTES_MAX, "an inline payload fits its frame"  # noqa: S101
assert WELCOME_PROGRAM_BYTES_MAX <= INLINE_BYTES_MAX, "a small program is a small content"  # noqa: S101
assert INLINE_VALUE_BYTES_MAX <= INLINE_BYTES_MAX, "a small stored value is sent inline"  # noqa: S101
assert ARGUMENT_BYTES_MAX < FRAME_BYTES_MAX, "arguments fit one frame"  # noqa: S101
assert GROUPS_PRESENTED_MAX < MEMBERSHIPS_PER_TASK_MAX, "a session with a keyring can create groups"  # noqa: S101
assert NAME_BYTES * GROUPS_PER_CALL_MAX < FRAME_BYTES_MAX, "groups fit one frame"  # noqa: S101
assert SELECT_REFERENCES_MAX <= REFERENCES_PER_TASK_MAX, "a task selects among its references"  # noqa: S101
assert STREAM_RING_BYTES_MIN <= STREAM_RING_BYTES_DEFAULT <= STREAM_RING_BYTES_MAX, "ring sizes"  # noqa: S101
assert FRAME_BYTES_MAX < REPLY_BYTES_MAX < SEND_QUEUE_BYTES_MAX, "a reply fits an empty queue"  # noqa: S101
assert SPIN_BACKOFF_WAITS_MIN <= SPIN_BACKOFF_WAITS_MAX, "the backoff grows"  # noqa: S101
assert SCRUB_SLICE_BYTES >= SCRUB_ROW_BYTES  # noqa: S101
assert STORE_BATCH_MAX <= STORE_QUEUE_MAX, "a batch is taken from the queue"  # noqa: S101
assert AUDIT_RECORD_BYTES_MAX < AUDIT_BUFFER_BYTES_MAX, "a record fits an empty buffer"  # noqa: S101
assert AUDIT_BUFFER_BYTES_MAX < AUDIT_BACKLOG_BYTES_MAX, "single calls are refused before all calls are"  # noqa: S101
assert CALLS_UNDER_WAY_MAX < PENDING_PER_TASK_MAX, "other threads of a program can call, too"  # noqa: S101
assert SERVICE_STARTS_QUEUED_MAX < SERVICE_STARTS_MAX < PENDING_PER_TASK_MAX, "a supervisor lists tasks"  # noqa: S101
assert STEP_UNITS < VECTOR_CALLS_MAX < VECTOR_UNITS_MAX, "a vector of short calls fits one step"  # noqa: S101
assert DESCRIPTORS_PER_FRAME_MAX <= DESCRIPTORS_QUEUED_MAX, "one frame's descriptors fit the queue"  # noqa: S101
assert FAILED_PROGRAMS_KEPT <= RECIPES_KEPT <= ENDED_TASKS_KEPT, "recipes are kept with tasks"  # noqa: S101
assert CONNECTIONS_RESERVED < CONNECTIONS_MAX, "other users can connect"  # noqa: S101
assert max(JOB_INPUTS_MAX, JOB_REDUCERS_MAX) < ARGUMENTS_MAX, "the inputs of a mapper fit one call"  # noqa: S101
assert GOSSIP_BROKEN_SUSPICION_MS < GOSSIP_SUSPICION_MS, "a broken connection is the stronger hint"  # noqa: S101
assert 2 * GOSSIP_PERIOD_MS + 2 * GOSSIP_ACK_TIMEOUT_MS + GOSSIP_SUSPICION_MS < 3_000, (  # noqa: S101
    "a frozen node is dead within 3 s"
)
assert EPOCH_MAX * REQUESTS_PER_EPOCH <= COUNTER_MAX, "a request's number fits 63 bits"  # noqa: S101
assert 20 * (LEASE_GRANTED_MS - LEASE_MS) >= LEASE_MS, "clocks may differ by 5 % in a lease"  # noqa: S101
assert LEASE_PAUSE_MS > LEASE_GRANTED_MS, "no lease is granted while one is called back"  # noqa: S101
assert DCP_TRANSFERS_QUEUED_MAX >= 2 * DCP_REQUESTS_MAX, "every open request can be answered"  # noqa: S101
assert DCP_QUEUE_HIGH_WATER_BYTES + DCP_INLINE_BYTES_MAX < DCP_QUEUE_BYTES_MAX, "small frames fit"  # noqa: S101
assert ACCEPTOR_DESCRIPTORS > ACCEPT_WAITING_MAX, "waiting connections and their listener"  # noqa: S101
