"""Commands about objects.

- ``files``: ``dios put``, ``ls``, ``du``, ``get`` and ``rm``.
- ``replicas``: ``dios stat`` and ``dios replicate``.
- ``groups``: ``dios group``; ``kept``: promises of replicas as text.
- ``tokens``: ``dios token``.
- ``logs``: ``dios journal``.
- ``backup``: ``dios backup``; ``tier``: ``dios tier``.
- ``stores``: ``dios store``.
- ``removal``: the destruction of many objects, which ``dios rm`` and ``dios group rm`` share.
"""
