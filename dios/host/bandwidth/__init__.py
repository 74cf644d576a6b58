"""Meters, rates and guarantees of the bytes that tasks move over the network and store.

Read in this order:

- ``rates``: the interface for the rest of the host: it counts bytes and delays them.
- ``accounts``: the accounts that bytes are charged to.
- ``meters``: counters of one account, and of all accounts together.
- ``token_bucket``: the limit of a rate over time.
- ``guarantees``: the local controller, which divides the link while guarantees hold (Packer paper, II-D).
- ``water_filling``: the division itself (Packer paper, Algorithm 2).
"""
