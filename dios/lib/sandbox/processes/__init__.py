"""Programs in the image of a sandbox that run next to its cells, and connections to its ports.

Read in this order:

- ``records``: the orders of the owner, and the records that come back.
- ``supervisor``: runs the programs, on the side of the session.
- ``channels``: the streams between one handle of the owner and one program, seen from the owner, and
  ``handles`` a program as its owner sees it.
"""
