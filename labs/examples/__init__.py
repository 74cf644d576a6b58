"""Programs that use the generators of workloads.

``simulate_week`` compares waiting under DRF and SDRF, and ``packer_policies`` compares policies of packing.
``edrf`` and ``dc_drf`` divide a cloud among many tenants, exactly and before a deadline.
"""
