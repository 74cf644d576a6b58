"""The systems with which DIOS is compared.

``echo`` and ``tls_stream`` are lower bounds without any system. ``pipes``, ``redis_server``, ``ray_session``,
``ray_cluster`` and ``words`` do the work of a benchmark with pipes, ZeroMQ, Redis, Ray, DuckDB or Polars.
``containers`` starts an interpreter in other sandboxes.
"""
