"""A module with values alone."""

SMALL = 1
LARGE = 2
