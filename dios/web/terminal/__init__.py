"""A live overview of the cluster in a terminal (``dios top``), made with Textual.

- ``overview``: the rows of nodes and tasks as text, sorted and filtered; also for ``dios top --once``.
- ``application``: the screen and its keys.
"""
