"""A web page of a running cluster (``dios ui``), made with NiceGUI and its ECharts.

It runs as the user who starts it and shows what that user may see. Read in this order:

- ``access``: only a browser with the token gets a page.
- ``server``: starts the web server, and connects it with a node.
- ``layout``: the frame of all pages; ``charts``: options of ECharts.
- ``pages``: a module for each page.
"""
