"""Anonymous shared memory.

``memfd`` creates, seals and copies memory; ``pool`` re-uses memory that only the node writes.
"""
