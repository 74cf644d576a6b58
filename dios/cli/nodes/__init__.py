"""Commands about nodes and clusters.

- ``daemon``: ``dios-node start``, ``status``, ``stop``; ``setting_options`` are its options.
- ``joining``: ``dios-node init``, ``invite`` and ``authorize``, and the first start with ``--join``.
- ``trust``: ``dios-node trust``.
- ``inspection``: ``dios-node dump`` and ``replay``; ``target``: the node that a command is about.
- ``check``: ``dios-node check``; ``orphans``: ``dios-node orphans``.
- ``local_cluster``: ``dios up`` and ``dios down``; ``machines``: their options; ``compose``: the same with
  containers.
- ``users``: ``dios user``; ``programs_of_users``: programs that root runs as another user for it.
- ``members``: ``dios node``; ``node_logs``: ``dios node logs``; ``limits``: ``dios limits``; ``audit``:
  ``dios audit``; ``doctor``: ``dios doctor``; ``metrics``: ``dios metrics``; ``dashboard``: ``dios ui``.
- ``cluster_secret``: waits until nodes have the present secret of their cluster.
- ``fitness``: waits until nodes that were started know if they can run pure tasks.
- ``bringup``: ``dios up`` and ``dios down`` for other machines; ``config``: ``dios config``.
"""
