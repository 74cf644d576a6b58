"""One module for each page of the dashboard; each has a function ``show`` that makes its content.

``cluster``, ``tasks`` (with the page of one task), ``objects``, ``capabilities``, ``scheduling``, ``shares``,
``jobs``, ``functions``.
"""
