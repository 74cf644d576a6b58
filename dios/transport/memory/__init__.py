"""Anonymous shared memory.

``memfd`` creates, seals and copies memory; ``mapping`` maps it without a descriptor; ``pool`` reuses memory
that only the node writes; ``reclaimer`` frees large memories in a thread.
"""
