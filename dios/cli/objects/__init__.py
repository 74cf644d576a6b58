"""Commands about objects.

- ``files``: ``dios put``, ``ls``, ``du``, ``get`` and ``rm``.
- ``replicas``: ``dios stat`` and ``dios replicate``.
- ``groups``: ``dios group``; ``kept``: promises of replicas as text.
- ``logs``: ``dios log``.
- ``backup``: ``dios backup``.
"""
