"""``dios pack``: jobs over time.

- ``live``: ``dios pack check``, ``ls`` and ``release``, which ask a cluster.
- ``learn``: ``dios pack learn``, which writes a job from measurements.
"""
