"""Environments of tasks: packages that a user chooses, installed for their own tasks on a node.

- ``environments``: builds an environment and brings it to nodes; the name that it returns takes the place of
  a template.
- ``requests``: the packages that a program asks for, checked; ``requirement_files``: files that list them;
  ``sources``: where their wheels are.
- ``building``: runs the installer, within bounds, and packs what it has installed.
- ``installer``: the program that runs pip, confined to one folder.
- ``archives``: the archives that a user's programs keep.
"""
