"""Jobs over time in a simulated data centre, under several policies.

``generate_jobs`` makes synthetic jobs from a seed, and ``simulate`` offers jobs that arrive over time to
several policies.
"""
