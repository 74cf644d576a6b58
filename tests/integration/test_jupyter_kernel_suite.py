"""Jupyter's own tests of kernels, from the package jupyter_kernel_test, run against "DIOS sandbox"."""

from __future__ import annotations

import pytest

pytest.importorskip(
    "jupyter_kernel_test", reason="the package jupyter_kernel_test is not installed: make setup"
)

import jupyter_kernel_test

from tests.integration.test_jupyter_kernel import Notebook, notebook, person

__all__ = ["notebook", "person"]

pytestmark = [pytest.mark.long, pytest.mark.filterwarnings("default")]


class TestKernel(jupyter_kernel_test.KernelTests):  # type: ignore[misc] # its classes have no types
    """The samples for the suite, for all of its cases."""

    language_name = "python"
    file_extension = ".py"
    code_hello_world = "print('hello, world')"
    code_stderr = "import sys; print('an error', file=sys.stderr)"
    code_generate_error = "raise ValueError('x')"
    code_execute_result = (
        {"code": "1 + 2 + 3", "result": "6"},
        {"code": "[n * n for n in range(1, 4)]", "result": "[1, 4, 9]"},
        {"code": "1 + 2 + 3", "result": "6"},
    )
    code_history_pattern = "1?+*"
    supported_history_operations = ("tail", "range", "search")
    completion_samples = ({"text": "zi", "matches": {"zip"}}, {"text": "import o"})
    complete_code_samples = ("1", "print('hello, world')", "f(*args, **kwargs)")
    incomplete_code_samples = ("print('''hello", "for x in y:\n    x * 2")
    invalid_code_samples = ("import = 7q",)
    code_page_something = "zip?"
    code_inspect_sample = "zip"
    code_clear_output = "from IPython.display import clear_output; clear_output()"
    code_display_data = (
        {"code": "from IPython.display import HTML; display(HTML('<b>x</b>'))", "mime": "text/html"},
        {"code": "from matplotlib.figure import Figure; display(Figure())", "mime": "image/png"},
        {"code": "import pandas as pd; display(pd.DataFrame({'x': [1]}))", "mime": "text/html"},
    )

    @classmethod
    def setUpClass(cls) -> None:
        """Leave the start of the kernel to a fixture."""

    @classmethod
    def tearDownClass(cls) -> None:
        """Leave its end to the fixture as well."""

    @pytest.fixture(autouse=True)
    def opened(self, notebook: Notebook) -> None:
        """Use the kernel of the notebook of these tests, whose session begins with its first cell."""
        notebook.runs("1")
        self.km, self.kc = notebook.manager, notebook.client
