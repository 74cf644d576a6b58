"""Flows: their five-tuples, and the tables that store an entry for each flow.

Read ``five_tuple`` first (the hash that chooses a flow's designated core), then ``flow_table`` (one table for
each core, written by that core and read by all).
"""
