"""The commands ``dios`` and ``dios-node``, in folders by topic. They have no logic of their own.

``program`` has the entry points, ``main`` assembles ``dios``, and ``nodes.daemon`` is ``dios-node``.
A command's module is imported only when the command is used. The folders:

- ``common``: the connection and keyring of a command, its output and errors.
- ``nodes``: nodes and clusters: ``dios-node``, ``dios up``, ``node``, ``limits``, ``audit``, ``doctor``.
- ``objects``: ``dios put``, ``get``, ``ls``, ``rm``, ``stat``, ``replicate``, ``group``, ``log``.
- ``tasks``: ``dios run``, ``trace``, ``ps``, ``logs``, ``kill``, ``describe``, ``debug``, ``shell``.
- ``scheduling``, ``packing``: ``dios sched``, ``dios explain``, ``dios shares``, ``dios pack``.

``network_functions`` is ``dios nf``, ``schema`` is ``dios schema``. The package ``labs`` adds ``dios lab``.
"""
