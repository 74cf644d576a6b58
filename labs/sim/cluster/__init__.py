"""A simulated cluster.

Read the modules in this order:

- ``machine``: a disk, a clock, and a node that crashes and restarts; ``host`` is the node itself.
- ``network``: connections and messages between the nodes.
- ``slowness``: nodes and links that are slow and do not fail.
- ``fault_injector``: the schedule of cuts, crashes, freezes and stalls.
- ``promises``: the promises that the nodes have made in their answers.
- ``simulated_client``, ``client_actions``: clients that make random calls.
- ``flow_ledger``, ``labelled_client``: what each value may contain, and clients that work with labels.
- ``repeated_reads``: clients that read one object again and again while others change it.
- ``agreement``: the checks that nodes agree with each other and with the promises.
- ``world``: the run of one seed.
"""
