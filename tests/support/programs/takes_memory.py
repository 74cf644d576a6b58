"""A module of a template that takes a gigabyte."""

HELD = bytearray(1 << 30)
