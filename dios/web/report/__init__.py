"""Pages as files (``dios report``, ``dios explain --picture``): HTML without scripts, which needs no network.

- ``collection``: the data of a page, read from a node.
- ``page``: the page about a job, with its timeline as SVG.
- ``decision``: the page about one decision of the scheduler (``dios explain --picture``).
- ``html_page``: the HTML of both. Every text of others is escaped there.
"""
