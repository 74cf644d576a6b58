"""A running node as bytes and descriptors, which its process hands to the program that replaces it.

- ``format``: the bytes: what each part of the host hands over, with a bound for each field.
- ``memories``: the contents that several parts share, each handed over once.
- ``gate``: stops the readers of calls and consoles at a point where nothing is lost.
- ``gathering``: collects the state of all parts, and gives it to the parts of the successor.

The parts themselves (``contents``, ``buffers``, ``streams``, ``task_host`` and others) have a method
``hand_over`` and one that takes over. ``dios.node.continuation`` is the process: it tries the successor,
stops the readers, and replaces the program. ``docs/formats.md#the-state-for-a-successor`` has the bytes.
"""
