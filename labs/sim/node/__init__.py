"""One simulated node.

Read the modules in this order:

- ``host``: carries out the effects of the core; ``contents`` has the bytes of its objects.
- ``dormant_rows``: the store's rows that the core reads when they are named.
- ``continued_core``: a core that is encoded, decoded and continued at random steps.
- ``workload``: clients that make random calls and record what the node promised.
- ``direct_reads``: clients that read without a call where they can, and the check of these reads.
- ``checker``: compares the node with these promises after every crash.
- ``world``: the run of one seed.
- ``systematic``: repeats one run with one more fault at each disk operation in turn.
"""
