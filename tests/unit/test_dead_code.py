"""No function, class, method or property of the product is without a user.

Code that only tests call counts as unused: it belongs to the tests. ``ALLOWED`` lists what is used in a way
that a search by name cannot see, each with its reason.
"""

from __future__ import annotations

from fnmatch import fnmatch
from pathlib import Path
from typing import Final

import pytest

vulture = pytest.importorskip("vulture", reason="vulture is not installed: make setup")

ROOT: Final = Path(__file__).resolve().parents[2]
KINDS: Final = {"function", "class", "method", "property", "unreachable_code", "import"}

ALLOWED: Final = {
    "dios/__init__.py:__*__": "Python calls these for names that load on first use",
    "dios/aio.py:__*__": "the same",
    "dios/__init__.py:*load_ipython_extension": "IPython calls these",
    "dios/host/network/addresses.py:*_on_behalf_of": "trio calls these on a limiter",
    **dict.fromkeys(
        (
            f"dios/node/metrics/exporter.py:{name}"
            for name in ("log_message", "verify_request", "handle_error")
        ),
        "the server of the standard library calls these",
    ),
    "dios/*:_repr_html_": "notebooks call it",
    "dios/bridges/notebook.py:_render_traceback_": "IPython calls it",
    "dios/bridges/mcp_http.py:*": "mcp and uvicorn call these by name",
    "dios/bridges/jupyter_kernel.py:*": "Jupyter calls the methods of a kernel by name",
    "dios/cli/common/application.py:*": "Typer calls these by name",
    "dios/cli/common/options.py:__*__": "Python calls it",
    "dios/cli/program.py:*": "the entry points of the installed programs",
    "dios/cli/tasks/shell.py:*": "cmd.Cmd calls these by name",
    "dios/web/terminal/application.py:*": "Textual calls handlers and actions by name",
    "dios/bridges/joblib.py:*": "joblib calls the methods of a backend by name",
    "dios/lib/*:*": "the libraries' public interface is for users' programs",
    "dios/client/warm_up.py:rehearse_in_zygote": "the zygote calls it by a name in its first message",
    "dios/syscalls.py:*": "the calls of the thesis are for users' programs",
    "dios/client/keyring.py:*": "the keyring's public interface is for users' programs",
    "dios/client/blob_file.py:*": "Python and pyarrow call the methods of a file by name",
    "dios/client/task_main.py:create_module": "part of Python's protocol for importers",
    "dios/fairness/*:SdrfTree": "docs/fairness.md teaches it",
    "dios/firmament/models/*:*": "cost models are found by name, and call each other through the protocol",
    "labs/solvers/*:*_arc": "the public interface of IncrementalSolver",
    "dios/kernels.py:get_*": "Numba asks for the place of a kernel by these",
    "dios/kernels.py:from_function": "the same",
    "dios/kernels.py:*cache_path": "the same",
    "dios/firmament/compile_kernels.py:compile_in_background": "a process that a coordinator starts runs it",
    "dios/firmament/knowledge/*:slow_down": "docs/profiling.md teaches it",
    "dios/firmament/knowledge/aggregates.py:variance": "docs/profiling.md teaches it",
    "dios/packer/datacenter.py:fat_tree": "docs/packer.md teaches it",
    "dios/sprayer/*:connection_packets": "a handler that the compiled worker calls by address",
    "dios/sprayer/*:expired_flow": "a handler that the compiled worker calls by address",
    "dios/sprayer/functions/*:*": "ready network functions are loaded by name",
    "dios/sprayer/compile/intrinsics.py:*": "Numba's extension points",
    "dios/sprayer/compile/inlined_methods.py:*": "Numba's compiler calls them",
    "dios/sprayer/packets/packet.py:__*__": "Numba calls these for records",
    "dios/sprayer/flows/flow_table.py:look_for_expired": "compiled handlers call it by name",
    "dios/sprayer/flows/flow_table.py:remove_expired": "the same",
    "dios/core/model/names.py:special_name": "the inverse of special_number, for programs and tests",
    "dios/host/process/zygote_pool.py:wait_pool_full": "tests wait for it instead of sleeping",
    "labs/benchmarks/neighbours/kinds.py:*": "a decorator puts these into a table",
    "labs/benchmarks/peers/*:_*": "types for libraries that have none",
    "labs/benchmarks/scale/virtual_time.py:*": "trio calls the methods of a clock by name",
    "labs/papers/sprayer/lab/*:*": "the test lab's library: tests/support builds on it",
    "dios/sprayer/linux/offloads.py:active_features": "tests compare an interface before and after",
    "dios/transport/memory/memfd.py:sealed_memory": "tests make what a task would hand over",
    "dios/transport/rings/layout.py:*": "the node's view of a ring, which tests compare with both ends",
    "dios/transport/rings/reader.py:receive_into": "the reading end's interface, used by programs",
    "dios/transport/tcp/tls.py:_Older": "a type for an attribute of the standard library",
}


def test_everything_in_the_product_has_a_user() -> None:
    """What is defined in dios/ or labs/ is used there, in the examples, or for a reason that is listed."""
    bound = ["@app.command", "@*_app.command", "@app.callback", "@handles"]
    finder = vulture.Vulture(ignore_decorators=bound)
    finder.scavenge([str(ROOT / folder) for folder in ("dios", "labs", "examples")])
    unused = []
    for item in finder.get_unused_code(min_confidence=60):
        place = f"{Path(item.filename).relative_to(ROOT)}:{item.name}"
        if (
            item.typ in KINDS
            and place.startswith(("dios/", "labs/"))
            and not any(fnmatch(place, pattern) for pattern in ALLOWED)
        ):
            unused.append(f"{place} ({item.typ}, line {item.first_lineno})")
    listed = "\n".join(unused)
    assert not unused, f"remove these, move them to the tests, or add a reason to ALLOWED:\n{listed}"
