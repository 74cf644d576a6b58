"""Compilation of network functions with Numba.

Read ``compile_handlers`` first (from the handlers of a class to one compiled function), then
``tuple_methods`` (methods of named tuples in compiled code), ``inlined_methods`` (their translation as parts
of a larger function), ``intrinsics`` (processor instructions that Numba lacks) and ``kept_code`` (compiled
functions on disk).
"""
