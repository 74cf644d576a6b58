"""Bridges: other libraries' interfaces for parallel work, on the executor, and for agents, on sandboxes.

- ``joblib``: the backend "dios" of joblib, which scikit-learn uses; ``joblib_worker`` prepares its workers.

- ``notebook``: cells of notebooks as tasks, on IPython; ``notebook_worker`` runs them.
- ``jupyter_kernel``: a kernel of Jupyter, whose cells run in a sandbox; ``jupyter_specs`` installs it,
  and ``kernel_history`` has its former cells.
- ``mcp``: a server of the Model Context Protocol, whose tools run code in sandboxes; ``mcp_http`` serves
  them over HTTP.
- ``dask``: shuffles of Dask's tables as calls. Its scheduler may be any executor.
"""
