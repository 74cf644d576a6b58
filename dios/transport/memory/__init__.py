"""Anonymous shared memory.

``memfd`` creates, seals and copies memory; ``pool`` reuses memory that only the node writes; ``reclaimer``
frees large memories in a thread.
"""
