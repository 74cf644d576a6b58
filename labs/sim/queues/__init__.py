"""The scheduler's queue in virtual time: users with streams of small tasks, and some with large ones.

- ``world``: one run under one cost model, with machines and coordinators that fail, and its claims
"""
