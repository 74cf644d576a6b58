"""A module that is imported late."""

VALUE = "late"
