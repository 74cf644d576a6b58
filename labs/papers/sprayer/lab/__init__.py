"""A test lab for network functions: network namespaces that act as machines, and traffic between them.

Read the modules in this order:

- ``namespaces``: the namespaces of one machine;
- ``veth_pairs``: two machines, and a network function between them, connected by veth pairs;
- ``frames``: the TCP frames for measurements;
- ``traffic``, ``traffic_kernels``: sending and receiving them at high rates;
- ``measure``: rates, order and delays;
- ``tcp``: throughput of real TCP connections;
- ``quic``: a real QUIC connection, whose ends are the program ``quic_peer``.
"""
