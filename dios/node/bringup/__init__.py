"""Brings a cluster up on machines of others: hosts reached by ssh, an allocation of Slurm, Kubernetes.

For hosts, read ``hosts`` (the steps over all hosts), ``ssh`` and ``answers`` (one conversation with one
host), ``on_host`` (the program that ssh runs there), ``first_start`` and ``supervise`` (the programs that it
runs from the installed environment), ``wheel`` (the package that is uploaded), ``release`` (the signed one in
its place) and ``dependencies`` (the wheels that it needs, and their hashes). ``slurm`` submits a job,
``in_allocation`` runs on each of its machines, and ``kubernetes`` applies manifests.
"""
