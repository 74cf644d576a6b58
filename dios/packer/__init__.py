"""Tightly packed jobs that declare what they need and when, as a library on plain arrays.

The classes and functions exported here are the public interface. Nothing in this package knows about
clusters, principals or running tasks. Read the modules in this order:

- ``job``: the description of a job (:class:`TiMra`), its TOML format, and jobs from measurements;
- ``datacenter``: servers, services and links, and the free amounts over time (:class:`Datacenter`);
- ``policies``, ``baselines``: the rules that compare servers, Packer's own and those of other systems;
- ``allocate``: admission of a whole job (:func:`allocate`), with its compiled parts in ``kernels``;
- ``earliest``: admission of a job that may wait (:func:`allocate_earliest`);
- ``share_bandwidth``: the division of a link's bandwidth among the tasks of a server;
- ``templates``: ready-made jobs.
"""

from dios.packer import baselines
from dios.packer.allocate import Placement, Refusal, allocate
from dios.packer.datacenter import Capacity, Datacenter, Link, Spot
from dios.packer.earliest import allocate_earliest
from dios.packer.job.ti_mra import Edge, JobError, Node, TiMra
from dios.packer.policies import Policy
from dios.packer.share_bandwidth import share_bandwidth

__all__ = [
    "Capacity",
    "Datacenter",
    "Edge",
    "JobError",
    "Link",
    "Node",
    "Placement",
    "Policy",
    "Refusal",
    "Spot",
    "TiMra",
    "allocate",
    "allocate_earliest",
    "baselines",
    "share_bandwidth",
]
