"""Programs that use the generators of workloads.

``simulate_week`` compares waiting under DRF and SDRF, and ``packer_policies`` compares policies of packing.
"""
