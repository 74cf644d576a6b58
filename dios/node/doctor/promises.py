"""The promises of docs/threat-model.md, with the mechanisms of a machine on which they depend.

A test compares the page with this table, row by row. ``dios doctor`` shows for each whether it holds here.
"""

# ruff: noqa: E501 - a claim is one line of the page, and of this table

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final


@dataclass(frozen=True, slots=True)
class Promise:
    """One row: a claim of an ``area``, and what is ``left`` to an attacker in any case.

    The claim falls without any of the mechanisms in ``needs``. ``without`` says by mechanism which part of it
    falls if that is missing.
    """

    area: str
    claim: str
    left: str = ""
    needs: tuple[str, ...] = ()
    without: Mapping[str, str] = field(default_factory=dict)


PROMISES: Final = (
    # -- Isolation
    Promise(
        "Isolation",
        "A task reaches exactly the objects that it created, received, or can name in groups in which it is a member",
        left="what a task may read it can copy to whatever it may write",
    ),
    Promise(
        "Isolation",
        "A name is worth nothing without its group, and a task that merely resolved a group's name sees, grants and destroys nothing in it",
        left="a name that was given away cannot be taken back",
    ),
    Promise(
        "Isolation",
        "No right is gained by delegation, copies, children, vectors or confederates",
    ),
    Promise(
        "Isolation",
        "A group that is shared with another user is read by that user's own processes alone, until its time is over or it is withdrawn: a stolen, changed, late or withdrawn grant is refused, and nothing is written, destroyed, delegated or created through it",
        left="bytes that were read; a reader can delay writers as any reader can; nodes that cannot be reached learn of a withdrawal late, at the latest when they take the node of the share for dead",
    ),
    Promise(
        "Isolation",
        "A sealed token gives what its grant and all its caveats leave, to read or to write, and nothing else: a holder narrows it without asking, and a token that was forged, cut, reordered or widened, that is over by the clock of its cluster, or is for another cluster, user or path, is refused",
        left="everybody who has a token can use it; present and former nodes of the issuing cluster can remove caveats from tokens that they saw; the user is the one that the holder's cluster states",
    ),
    Promise(
        "Isolation",
        "A revoked token, and every token made of it, is refused from the next use on in all clusters, and reading that is under way ends",
        left="bytes that were read; nodes of the cluster that cannot be reached learn of it late, as with shares",
    ),
    Promise(
        "Isolation",
        "A trusted cluster can use tokens and nothing else: its certificates open no port but the border's, messages of other kinds end the connection, nothing is passed on to third clusters, and without the trust of both sides nothing is read",
        left="only the other cluster knows which of its nodes it has removed",
    ),
    Promise(
        "Isolation",
        "Tokens are in no log, audit record, argument or repr; both sides record who used which token, and each refusal",
    ),
    Promise(
        "Isolation",
        "A pure task that has read an object with a secrecy tag writes, creates, delegates, maps and starts only where the tag may go, on every node, unless it holds a reference with the right to declassify it",
        left="others see without reading an object that it exists, its size, versions and times; a task can signal by the time and the number of its calls, or by shared caches",
    ),
    Promise(
        "Isolation",
        "Words and numbers that such a task chooses (tags, titles, limits, progress, exit codes) are shown to nobody without its label",
        left="the needs of a run reach the scheduler of the nodes' own user",
    ),
    Promise(
        "Isolation",
        "An object with a secrecy tag is read by no task outside the sandbox or with the network, by no process of a user who does not own the tag, and by no node that does not know labels",
        left="a process of the tag's owner may send it anywhere, and so may a task with the right to declassify it; memory that such a task has mapped stays so when the right is taken back",
    ),
    Promise(
        "Isolation",
        "Buffers belong to their task, and bytes that may only be read cannot be written",
        left="memory that is mapped stays so until its task ends",
        needs=("memfd_seals",),
    ),
    Promise(
        "Isolation",
        "A delegation can be taken back, on request or at a set time",
        left="bytes that were read, and memory and rings that are mapped, until the task ends",
    ),
    Promise(
        "Isolation",
        "Readers of one object do not affect each other",
        left="caches of the processor are shared",
    ),
    Promise(
        "Isolation",
        "One end of a stream can harm the other only by its messages",
        left="an end can stop within a message, and wake its partner for nothing",
    ),
    Promise(
        "Isolation",
        "Nobody blocks the node, or another task's client, through a descriptor that they share, whatever they do to its flags, its queue or its counters",
    ),
    # -- The machine
    Promise(
        "The machine",
        "No files except a read-only view of the interpreter's library, of time zones, and of declared packages; of all devices /dev/null alone, which keeps nothing",
        left="the library's files are in shared caches, whose timing shows what others load",
        needs=("user", "mount", "landlock", "seccomp"),
    ),
    Promise(
        "The machine",
        "The files that a task writes are in memory, count as its own and end with it; nobody else sees them, and nothing runs from them",
        left="a hostile file system call reaches the kernel's file system in memory",
        without={
            "user": "tasks have no private folder and write no file",
            "mount": "tasks have no private folder and write no file",
            "landlock": "one layer fewer against writing elsewhere: the view is mounted read-only",
            "cgroup_memory": "the daemon counts the folder ten times a second",
        },
    ),
    Promise(
        "The machine",
        "No network of any family, no name service, no inherited descriptor",
        needs=("user", "net", "seccomp"),
        without={
            "landlock_net": "one layer fewer against TCP: the network namespace and the filter remain",
        },
    ),
    Promise(
        "The machine",
        "The network is available only by reference: connections, listeners and datagrams take a reference to the NETWORK object with the right to write",
        left="the holder reaches whatever this machine reaches, its own services included",
    ),
    Promise(
        "The machine",
        "A hostile peer of a network stream (floods, silence, resets, nonsense) costs only that stream",
        left="it uses the link, where no rates are set",
    ),
    Promise(
        "The machine",
        "No other programs, no other processes seen, signalled, traced or read, nor named by a number inside of an argument",
        left="sessions that can be forked have one numbering of processes: the numbers of their own threads show how many threads others start",
        needs=("user", "pid", "ipc", "no_new_privs", "seccomp"),
        without={
            "uts": "a task can read the name of the machine",
            "landlock_scope": "one layer fewer against signals: the namespaces and the filter remain",
            "pidfd": "the node might signal a process that took the number of an ended one",
        },
    ),
    Promise(
        "The machine",
        "The kernel's rarer parts are out of reach, and every flag and value of an argument that no task needs",
        left="a defect of the kernel in one of the allowed calls",
        needs=("seccomp",),
    ),
    Promise(
        "The machine",
        "A greedy task is refused or ended, with its cause, and its neighbours are answered meanwhile",
        without={
            "cgroup_memory": "memory is counted for each process, and as the next row says",
            "cgroup_pids": "threads and processes count for all pure tasks together, and those of limbo tasks not at all",
        },
    ),
    Promise(
        "The machine",
        "Without a control group, a pure task above its memory limit is ended all the same, and the kernel's memory for its descriptors is bounded by the limit",
        left="the kernel's entries for names that a task looks up in vain have no bound and no account, and go when the machine needs the memory",
    ),
    Promise(
        "The machine",
        "No task makes the zygote, and with it other tasks, end, or keeps the node from sending descriptors",
    ),
    Promise(
        "The machine",
        "A task that spoils all the memory, descriptors and wake-ups that it really holds harms no neighbour, nor the program at the other end of its streams, and the node ends in order",
    ),
    Promise(
        "The machine",
        "A WebAssembly module reaches less than a task in Python: its inputs, its folder and its memory, and no call of the system",
        left="a defect of the engine gives a module what a pure task in Python has",
    ),
    Promise(
        "The machine",
        "A native program does no more than a pure task in Python, and only the owner of the node adds one",
        left="another process of the same user outside of the sandbox can trace a native program where the machine permits it, and its arguments are in the machine's list of processes; a machine that lacks a mechanism has no native programs",
    ),
    Promise(
        "The machine",
        "Tasks of different principals, and gateways, share no memory layout, stack guard or hash secret",
        left="tasks of one principal share the three with each other, also sandboxes, tasks with and without a secrecy label, and all gateways of the principal; so do all tasks of a public template, whoever starts them; the layout of the kernel and the copies of libraries in its cache are those of the machine",
    ),
    Promise(
        "The machine",
        "With one layer switched off, the layers behind it hold",
        left="see the list below",
    ),
    Promise(
        "The machine",
        "No pure task starts a program outside the sandbox",
        needs=("no_new_privs", "seccomp"),
    ),
    # -- Deniability
    Promise(
        "Deniability",
        "Resolving a name that does not exist, and a name in a foreign group, give the same bytes by the same path",
    ),
    Promise(
        "Deniability",
        "No difference in time is found",
        left="differences below what the measurement resolves",
    ),
    # -- Limits
    Promise(
        "Limits",
        "Objects, bytes, references, requests, tasks, CPU time and memory of a task, a group or a principal stay within the set limits",
        left="each node counts by itself",
        without={
            "cgroup_memory": "memory of a limbo task is not limited",
            "cgroup_pids": "processes of limbo tasks are not limited",
        },
    ),
    Promise(
        "Limits",
        "Splitting work over tasks, sessions, copies, old versions or buffers gains nothing",
        left="each node counts by itself",
    ),
    Promise(
        "Limits",
        "Memory for writing stays as large as it was counted, and nobody makes it smaller under others",
        needs=("memfd_seals",),
    ),
    Promise(
        "Limits",
        "Objects cannot fill the machine's memory",
    ),
    Promise(
        "Limits",
        "No principal takes all descriptors of the node, and the node keeps some for itself",
    ),
    Promise(
        "Limits",
        "No user, and no job, pushes the ended tasks, the logs, the last output and the repeatable runs of others out of what the node keeps",
        left="its own older ones, and by each job at most a sixteenth, of the principal's oldest",
    ),
    Promise(
        "Limits",
        "No other user takes every connection",
        left="other users together can take their half",
    ),
    Promise(
        "Limits",
        "Tasks that compute on all processors do not keep the daemon from its part: it has nine times that of each of them",
        left="a thousand such tasks have more together; a client that keeps the daemon busy takes it from tasks",
        without={
            "daemon share": "the daemon has at most the part of one task, and calls wait while many compute"
        },
    ),
    Promise(
        "Limits",
        "A call does not wait until a task that computes has used up its time slice",
        left="it waits for calls that came before it",
        without={"daemon slice": "it waits some milliseconds for each processor that others use"},
    ),
    # -- Other users of the machine
    Promise(
        "Other users of the machine",
        "A client sends nothing, no name of a group above all, to a socket on which another user listens; it looks for its node, its settings and its keyring only where no other user could have put them",
        left="root, and whoever the client accepts by name",
    ),
    Promise(
        "Other users of the machine",
        "A node, and a command, obeys no settings, keys, database, records, modules or compiled code that another user could have written, and writes no log through such a user's link",
        left="root",
    ),
    Promise(
        "Other users of the machine",
        "Other users cannot open a node's files and socket",
        left="root",
    ),
    Promise(
        "Other users of the machine",
        "A user in allowed_uids reaches the socket in the data directory, and nothing else there",
    ),
    Promise(
        "Other users of the machine",
        "A user in allowed_uids gets a principal of its own and none of the rights of the node's user",
        left="without limits it can use up what the node has",
    ),
    Promise(
        "Other users of the machine",
        "Nothing that a task, an object, a label or another node says controls a user's terminal: no title, clipboard, colour, direction of text or overwritten line",
        left="output that is not written to a terminal is not changed",
    ),
    Promise(
        "Other users of the machine",
        "A user's program that holds the lock of memory or of a file for ever, with a file system of its own, delays neither the node nor another writer",
    ),
    Promise(
        "Other users of the machine",
        "No log, metric, repr or process argument of the node contains a name; users see fingerprints",
        left="a name that is typed on a command line is visible while the command runs",
    ),
    # -- Messages to the daemon
    Promise(
        "Messages to the daemon",
        "Malformed bytes cost their sender its connection, and affect no other connection",
    ),
    Promise(
        "Messages to the daemon",
        "All other untrusted input (rings, consoles, last words, files) is checked where it is read",
    ),
    Promise(
        "Messages to the daemon",
        "No descriptor is ever accepted, and none whose closing would block reaches the node",
        without={
            "passrights": "a plain receive drops descriptors, and a user's socket with SO_LINGER among them delays the node"
        },
    ),
    Promise(
        "Messages to the daemon",
        "Every number has a range and every text and list a greatest length; what a node takes over and sends on, no other node refuses: the liar is cut off and not the relay",
    ),
    Promise(
        "Messages to the daemon",
        "A defect in the work for one task, node or object ends that task, connection or object; others are served, and the log, the audit log and dios-node status tell of it",
        left="a broken invariant of the core ends the node, whose promises hold over a restart",
    ),
    Promise(
        "Messages to the daemon",
        "Nobody slows the node down with a defect that they can repeat",
        left="programs of the node's own user",
    ),
    # -- Other machines
    Promise(
        "Other machines",
        "No port serves a peer without a certificate of the cluster; every connection is TLS 1.3 with both ends authenticated",
    ),
    Promise(
        "Other machines",
        "Strangers at the port neither keep nodes out nor cost memory",
        left="handshakes take processor time, up to their bound",
    ),
    Promise(
        "Other machines",
        "An invitation admits its stated number of nodes, until it expires, at one node, to one conversation, and gives no other right",
        left="whoever has the invitation's text can use it up",
    ),
    Promise(
        "Other machines",
        "A revoked node is refused, with everything that it signed or will sign, and its live connections end",
        left="what it did before",
    ),
    Promise(
        "Other machines",
        "Statements of a revoked node, or of a node that it had hidden, are void, whatever their date and whichever node relays them",
        left="what it stated before, and honest nodes had stored",
    ),
    Promise(
        "Other machines",
        "No member fills the tables of removals or of known nodes for others, and what it removed can be taken back",
    ),
    Promise(
        "Other machines",
        "dios node forget succeeds only if every live node has stored the removal",
        left="a node that is away learns of it when it returns",
    ),
    Promise(
        "Other machines",
        "A node cannot pass for another node",
    ),
    Promise(
        "Other machines",
        "An altered announcement, or one of another cluster, is ignored; a true or repeated one causes a dial and nothing else",
    ),
    Promise(
        "Other machines",
        "A node that lies about others, or about this one, is denied; when it stops, all tables are true, and no lie causes endless messages",
        left="see A node that was taken over",
    ),
    # -- Schedulers
    Promise(
        "Schedulers",
        "A coordinator gives no task anything: it sees labels, fingerprints and needs, never a name, and starts nothing that was not requested",
        left="a coordinator can place a run badly",
    ),
    Promise(
        "Schedulers",
        "Only the nodes' own user and root schedule; a pure task neither reads submission queues nor asks about others",
        left="any node of the cluster can speak as that user",
    ),
    Promise(
        "Schedulers",
        "A service starts what its user recorded, with that user's rights; no task, no coordinator and no other user reads or changes the records",
        left="a node of the cluster, which is believed about its own tasks, can change the records as well",
    ),
    Promise(
        "Schedulers",
        "A keeper of replicas reads, copies and drops only what its user could, and counts it with that user on each node; no task, no coordinator and no other user reads or changes a promise",
        left="a node of the cluster has the names that promises and catalogues hold, as it has those of its own objects",
    ),
    Promise(
        "Schedulers",
        "Nothing is started twice, by any number of schedulers, and no more is reserved on a node than it has",
        left="a node that fails after a start: a restartable run may run again",
    ),
    Promise(
        "Schedulers",
        "No task is stopped unless it was declared restartable",
        left="its own user and root can end it",
    ),
    Promise(
        "Schedulers",
        "A task that must leave its node is gone after the time that it was started with, whatever it does, and changes nothing of the run that continues",
        left="until then it can store any bytes as its own state",
    ),
    Promise(
        "Schedulers",
        "A scheduler that is killed, hangs or lies can only delay runs, for a bounded time",
        left="a run waits 5 s longer, 15 s for a scheduler that places nothing, and minutes for one that also "
        "states false reasons; gangs, and runs that fit on no node where they wait, wait for an honest "
        "scheduler; one that places only the runs of some delays those of others by ten minutes each, and one "
        "that keeps room for a run which never fits delays those that fit there until that run is gone; a run "
        "that it places into the start queue of a node that never has room waits there until its user ends it",
    ),
    Promise(
        "Schedulers",
        "No user holds more of the cluster than the quota, whichever way the tasks start",
        left="starts past the queue on two nodes in the same second exceed it by one each; without a scheduler "
        "it holds for each node; any node of the cluster can speak as the nodes' own user, and set it",
    ),
    Promise(
        "Schedulers",
        "One user's queue does not keep another's runs from their share of a cluster",
    ),
    Promise(
        "Schedulers",
        "One user's bytes do not keep another's from links and disks, while rates are set",
        left="rates follow a second late",
    ),
    Promise(
        "Schedulers",
        "A task's guarantee benefits no other task",
    ),
    Promise(
        "Schedulers",
        "Only the nodes' own user and root set rates or read meters, and rates end by themselves",
        left="any node of the cluster can speak as that user",
    ),
    Promise(
        "Schedulers",
        "Only the nodes' own user and root set weights and quotas, or see others' shares",
        left="any node of the cluster can speak as that user",
    ),
    # -- Another node of the cluster
    Promise(
        "Another node of the cluster",
        "An object of another node has the protection of a local one: the same rights, levels, limits and errors",
        left="its own node can do anything to it",
    ),
    Promise(
        "Another node of the cluster",
        "Messages that are lost, repeated, late or out of order do nothing twice, and leave no caller waiting",
        left="an outcome that nobody can know is reported as unknown",
    ),
    Promise(
        "Another node of the cluster",
        "A message that no correct node sends costs its connection and changes nothing; calls end whatever the node answers",
    ),
    Promise(
        "Another node of the cluster",
        "A node speaks for its own tasks only: not for those of the asked node, nor of a third",
        left="it states for whom its own tasks act",
    ),
    Promise(
        "Another node of the cluster",
        "Rights do not grow on the way over nodes, a revocation takes back references on all of them, and a lifetime is that of the object's node",
    ),
    Promise(
        "Another node of the cluster",
        "A dead node holds nothing for ever, and a returning node gets nothing that was taken back since",
        left="until its grace period ends",
    ),
    Promise(
        "Another node of the cluster",
        "Between nodes, a name that does not exist and a name in a foreign group get the same answer",
        left="the asked node learns a hash of the name, and who asks",
    ),
    Promise(
        "Another node of the cluster",
        "Nobody can forge a group of another principal",
        left="a node of the cluster has the secret, and can",
    ),
    Promise(
        "Another node of the cluster",
        "A hostile node gets no reference that it was not granted, by guessing ids, or by claiming references that were retired or have expired",
    ),
    Promise(
        "Another node of the cluster",
        "It puts nothing before tasks of others: no invented events, no end of a child that is elsewhere, no object that was not requested",
    ),
    Promise(
        "Another node of the cluster",
        "It is not believed about tasks of third nodes: not for whom they act, nor what they are given",
    ),
    Promise(
        "Another node of the cluster",
        "It starts no legacy task, no task outside the sandbox except for the nodes' own user, and in restricted mode none at all",
        left="as the nodes' own user it can, outside restricted mode",
    ),
    Promise(
        "Another node of the cluster",
        "It makes no node speak to strangers, keeps no third node out, and is ignored after its removal",
        left="it can remove any other node, which is audited",
    ),
    Promise(
        "Another node of the cluster",
        "No node takes the id of another node's task, whether it calls, offers, reports or starts a task with it",
        left="a run that was given an object of its own can be refused by it",
    ),
    Promise(
        "Another node of the cluster",
        "It keeps no third node's tasks out, and fills no table of theirs, by naming them or by giving them references",
        left="it can fill the quarter, so that others' runs with references from third nodes are refused",
    ),
    Promise(
        "Another node of the cluster",
        "The output that it reports for a principal lands in that principal's logs, or nowhere",
        left="it can add false logs there, which count against the principal's share of logs",
    ),
    Promise(
        "Another node of the cluster",
        "A node that exists in gossip alone takes no call, and no removal, that names another by its name or id",
        left="a member can admit a node with the name of another: name nodes by their ids until it is removed",
    ),
    Promise(
        "Another node of the cluster",
        "Bytes that are still arriving from other nodes cannot fill the memory, in whosever name they come",
        left="two members together can use all of it: large transfers of others are then refused after 10 s",
    ),
    Promise(
        "Another node of the cluster",
        "Kept bytes of other nodes' objects are given only to a task that may read the object now",
        left="the time of a read shows if another task of the node has read this version; a member that lies"
        " about a call-back lets its own tasks read old versions",
    ),
    Promise(
        "Another node of the cluster",
        "A node that does not return a lease delays a writer by the time of a lease, once a minute",
        left="writers of an object that 64 nodes read wait for the slowest of them",
    ),
    Promise(
        "Another node of the cluster",
        "The state that it makes others keep is bounded: tasks, principals, groups, nodes, requests",
    ),
    Promise(
        "Another node of the cluster",
        "Lies and rubbish at full speed cost its own connections, each closing is in the audit log, and users and other nodes are served meanwhile",
    ),
    Promise(
        "Another node of the cluster",
        "A member that lies in any field, order, number or time costs no honest node its links, users or rights, and can be removed",
    ),
    Promise(
        "Another node of the cluster",
        "Every removal of a node is in the audit log of each node that heard of it, and stops no node: a removed one serves its own users",
    ),
    Promise(
        "Another node of the cluster",
        "Programs outside the sandbox that a node's tasks have started end when it is removed",
        left="what they did before",
    ),
    # -- Functions
    Promise(
        "Functions",
        "A worker of an executor can hurt only the results that it returns",
        left="a value that takes long to decode delays whoever asks for it",
    ),
    Promise(
        "Functions",
        "A template is confined like a task before it loads its modules, and no task that starts from it changes it or another one",
        left="a hostile module is in all tasks of its template: it can share memory among them, and keep what they are handed; and where no control group counts processes it can start many confined ones; a machine that lacks a mechanism has no templates",
    ),
    Promise(
        "Functions",
        "A session of a sandbox can hurt only its own results: its caller runs no code for them, and its memory and time for them are bounded; another session, and the one after a reset, sees nothing of it",
        left="it chooses the texts, numbers and pictures in its results; a value that takes long to decode delays whoever asks for it",
    ),
    Promise(
        "Functions",
        "A cost model of an operator reaches nothing: no file, network or object, and no process of the coordinator; a wrong, late or endless answer delays a round at most by its time limit",
        left="it decides where tasks run; it learns the names of principals, tasks' labels and machines",
    ),
    Promise(
        "Functions",
        "A session with a granted network reaches the named origins and nothing else: no other host, port or scheme, no address of a private network through a name, by no forged request, redirect or hostile answer; each request is in the audit log; headers that the caller adds reach their origin alone, and never the session",
        left="the session can send its inputs to the granted servers; sizes and times of requests are no secret; a server that repeats an added header in its answer shows it to the session; a translator (NAT64) with a prefix of its own network may lead to private addresses",
    ),
    Promise(
        "Functions",
        "A session of a sandbox that is forked makes one process for one order, and neither of the two sees what the other one does afterwards",
        left="a session with forkable=True keeps one capability in its own user namespace, which no permitted call uses; it sees by its process id how many sessions of templates have started; a session and its forks share one limit of processes",
        without={"listeners": "no session can be forked"},
    ),
    Promise(
        "Functions",
        "The server of dios mcp --http answers only who has its token: no other user, no page in a browser, no other machine; a client reaches no sandbox of another",
        left="in versions of the protocol without sessions, who learns the secret name of a sandbox may use it; the token does not prove the server to the agent, so where other users could take the port first, use stdio",
    ),
    # -- Durability and the audit log
    Promise(
        "Durability and the audit log",
        "A commit that was answered survives kill -9",
        needs=("store",),
    ),
    Promise(
        "Durability and the audit log",
        "While nodes are killed, frozen and stopped, an outcome that is not known is not reported as known; strong levels stay linearizable, runs are executed once, and nothing is left",
        needs=("store",),
    ),
    Promise(
        "Durability and the audit log",
        "It survives a power cut, torn pages, lost writes, failing and full disks, as far as the disk keeps the synced bytes",
        left="a disk that loses what it acknowledged",
        needs=("store",),
    ),
    Promise(
        "Durability and the audit log",
        "A full or unwritable disk is reported, reading continues, and service returns with the space",
    ),
    Promise(
        "Durability and the audit log",
        "Damage is found before it is served, and repaired if possible",
        left="a change below the file system after the first read, until scrubbing reads it",
    ),
    Promise(
        "Durability and the audit log",
        "Under load for hours nothing grows but the data",
    ),
    Promise(
        "Durability and the audit log",
        "Resolutions, creations, delegations, retirements, runs, limits and refusals are in the audit log, in the node's own words",
        left="records of volatile actions of the last 100 ms",
    ),
    Promise(
        "Durability and the audit log",
        "The audit log's growth is charged to the principal that causes it, and bounded for each and for all; beyond its rate a job's calls wait before anything changes, and no other job for long",
        left="a principal's own calls wait",
    ),
    Promise(
        "Durability and the audit log",
        "The log stays within its settings, and what was removed is stated; tampering with the rest, or removing more, is noticed",
    ),
    Promise(
        "Durability and the audit log",
        "A record that was changed, removed or moved is noticed",
        left="a cut of the whole log, if nobody keeps its head digest elsewhere",
    ),
    # -- Backups
    Promise(
        "Backups",
        "The store of a backup learns no name, path, alias or byte of what it keeps",
        left="sizes, times, how compressible packs are if they are compressed, and which files a restore reads",
    ),
    Promise(
        "Backups",
        "Whatever the store changes, swaps, cuts, removes or makes itself is noticed, and no such byte is restored",
        left="it can destroy the backup; a person with nothing but the private key compares number and time of the newest snapshot",
    ),
    Promise(
        "Backups",
        "A backup that breaks off changes no earlier snapshot",
        left="packs that no snapshot names",
    ),
    # -- Tiered files
    Promise(
        "Tiered files",
        "Whatever the store of tiered files changes, swaps, cuts or removes is noticed, and no such byte is read",
        left="it can destroy the files; it sees sizes, times, how compressible packs are if they are compressed, and which files come back",
    ),
    Promise(
        "Tiered files",
        "A member of a group cannot send another one's programs to a store that its user did not begin or open",
    ),
    Promise(
        "Tiered files",
        "A kill while a file goes to a store or comes back loses no byte of it",
        left="a tiered file is as durable as its store",
    ),
    Promise(
        "Tiered files",
        "A file that comes back stays in its store until as many nodes as promised have its bytes",
        left="without a promise one disk has it",
    ),
    Promise("Tiered files", "No file with a secrecy label goes to a store"),
    # -- Dashboard and metrics
    Promise(
        "Dashboard and metrics",
        "A browser without the token of a dashboard gets no page, no asset and no connection from it, and a page of another site cannot use a browser that has the token",
        left="a person with the printed address acts as its user",
    ),
    Promise(
        "Dashboard and metrics",
        "No page of a dashboard has a label, a fingerprint, a file, an output or a reference of another user, unless its user is that of the nodes or root",
        left="states, load and capacities of nodes, the number of users that share, and the place of its own turn are for all",
    ),
    Promise(
        "Dashboard and metrics",
        "Labels, output and names of tasks are text on a dashboard, whatever they contain",
    ),
    Promise(
        "Dashboard and metrics",
        "Metrics reach other machines only over mutual TLS, and hold no names of objects",
        left="on loopback every user of the machine reads them",
    ),
    # -- Logs of nodes
    Promise(
        "Logs of nodes",
        "Names of objects, grants and tokens are in no log of a node, at any level",
        left="a program's own secrets in texts of errors, which have no pattern",
    ),
    Promise(
        "Logs of nodes",
        "Text of others in the log of a node adds no line, and controls no terminal",
    ),
    Promise(
        "Logs of nodes",
        "Only the user who runs the nodes, and root, read the log of a node through it",
        left="a user who may read the file or the journal reads the log there",
    ),
    # -- Traces
    Promise(
        "Traces",
        "The answer to a traced call adds nothing but the times of its own parts and the names of the nodes, and no trace stays in a node",
        left="times that other users' work makes longer, which every caller can measure itself",
    ),
    Promise(
        "Traces",
        "The spans that a task returns cannot pass for spans of others, nor be more than the bounds",
        left="names and lengths of the spans of a task are what the task says",
    ),
    # -- Network functions
    Promise(
        "Network functions",
        "Frames that nobody should send change nothing but their own fate: each is sent or dropped for one counted cause, its place is free again once, and nothing beyond it is read",
    ),
    Promise(
        "Network functions",
        "A QUIC packet from an unknown address reaches the server whose connection id it has, and no other; an unknown id opens nothing, and no header stores more than the bounds",
        left="an observer of an id can use it; the server validates the new address",
    ),
    Promise(
        "Network functions",
        "A host outside opens a session through a NAT64 only to an end inside that has a mapping, with address-dependent filtering only from an address to which that end has a session, and never more than a part of a mapping and of a table",
        left="a forged source address counts as that address; clients inside can use all ports and the whole table",
    ),
    Promise(
        "Network functions",
        "A forged reset ends no connection that goes on, and shortens the time of no other one",
        left="a connection that is idle after it: 4 minutes through a NAT64, 10 seconds through a NAT",
    ),
    Promise(
        "Network functions",
        "No host sends through a translator what only the other version of IP has: extension headers, or ICMP of the other version",
    ),
    Promise(
        "Network functions",
        "Rows of another host that cannot be of the tables of a shared function are refused, and nothing is read or written beyond the tables",
        left="with the store's name, the right to claim the function and to change all of its translations",
    ),
)
"""The rows in the order of the page."""
