"""Dask's tables on executors: their shuffles as calls, whose workers have no disk and are not trusted.

Importing this module makes "tasks" the method of shuffles, unless the program has chosen another one. It
accepts the class in which the parts of a table are on their way from one call to the next, and the one that
stands for the missing result of an empty part of a bag.
"""

from __future__ import annotations

from typing import Final

import dask
from dask.bag.core import no_result
from dask.dataframe.backends import ShuffleGroupResult

from dios.lib.executor.results.class_forms import allow

_METHOD: Final = "dataframe.shuffle.method"

if dask.config.get(_METHOD, None) is None:
    dask.config.set({_METHOD: "tasks"})
allow(ShuffleGroupResult)  # a dictionary of tables
allow(no_result)
