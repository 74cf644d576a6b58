"""The evaluation of DIOS itself (thesis chapter 5): Figures 5.1 to 5.5 and Table 5.1 on real nodes.

- ``evaluation``: the figures, and the functions that make them; read it first;
- ``runs``: the sizes of the measurements, and what all figures share;
- ``clusters``: the nodes, started for a figure and stopped at its end;
- ``creation``: objects, compared with the system calls of Linux (Figure 5.1);
- ``starts``: tasks, compared with processes and pools of processes (Figure 5.2);
- ``messages``: streams in shared memory, compared with pipes, sockets and Redis (Figure 5.3);
- ``remote_reads``: reads of another node's objects by size (Figure 5.4), and calls by number of nodes;
- ``word_count``: MapReduce by workers and nodes (Figure 5.5);
- ``isolation``: what a task and a process can reach (Table 5.1);
- ``redis_peer``: a server of Redis if it is installed, as a peer for messages, reads and lookups;
- ``senders`` and ``peer_tasks``: the programs of the other systems' processes, with few imports.
"""
