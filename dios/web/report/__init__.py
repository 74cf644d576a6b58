"""One page about a job as a file (``dios report``): HTML without scripts, which needs no network.

- ``collection``: the data of a page, read from a node.
- ``picture``: the timeline as SVG.
- ``page``: the HTML. Every text of others is escaped there.
"""
