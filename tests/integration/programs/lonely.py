"""A module that is imported by its name alone."""

VALUE = "lonely"
