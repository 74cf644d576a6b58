"""The view that a user has of a cluster, read at a rate that costs the node little.

- ``cluster_view``: the data of one moment, and the functions that read it from a node.
- ``objects``: files, their replicas, objects in use, and the calls that wait for them.
- ``references``: the references of tasks, their retirement, and the story of one object.
- ``traffic``: versions of nodes, and rates of their links.
- ``packing``: demands, guarantees and use of admitted jobs over time.
- ``functions``: packets, drops and waiting times of network functions.
- ``explanations``: the reason against a machine.
- ``watcher``: reads it again and again while somebody looks, and keeps the recent past.
- ``session``: a watcher, and calls to the node in threads.
- ``figures``: the figures of tasks, users and nodes, each with its value and its text.
- ``jobs``: the tasks of a job, their stages, and lanes for their bars; ``task_use``: their use.
"""
