from __future__ import annotations

import gc
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# A helper that fails says which values it compared, as a test does.
pytest.register_assert_rewrite("tests.support")

sys.path.insert(0, str(Path(__file__).parent / "support" / "programs"))

# A busy machine takes long for an example without any fault in it.
settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")


@pytest.fixture(scope="session", autouse=True)
def _own_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Nodes and keyrings of the tests leave the links and files of whoever runs them alone."""
    with pytest.MonkeyPatch.context() as patch:
        for variable in ("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_RUNTIME_DIR", "XDG_STATE_HOME"):
            folder = tmp_path_factory.mktemp(variable.lower())
            folder.chmod(0o700)
            patch.setenv(variable, str(folder))
        # A scheduler's process beside each node would cost every test seconds; tests of it ask for it.
        patch.setenv("DIOS_COORDINATOR", "off")
        yield


@pytest.fixture(scope="session", autouse=True)
def _interruptible() -> None:
    """Let programs notice signals that a shell lets the suite ignore, for example in the background."""
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)


@pytest.fixture(scope="module", autouse=True)
def _small_heap() -> None:
    """Keep what earlier modules left, compiled kernels above all, out of further garbage collections.

    Otherwise each collection takes longer with every module that the process has run.
    """
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep the first ``keep`` cases of a test marked ``extended(keep=n)`` in runs without the others."""
    seen: Counter[str] = Counter()
    for item in items:
        mark = item.get_closest_marker("extended")
        if mark is not None and mark.kwargs:
            test = item.nodeid.partition("[")[0]
            seen[test] += 1
            if seen[test] <= mark.kwargs["keep"]:
                item.own_markers = [own for own in item.own_markers if own.name != "extended"]
