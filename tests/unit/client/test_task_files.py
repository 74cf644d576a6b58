"""Files of a task: where they are is known from its start, not from files of the machine."""

from __future__ import annotations

import subprocess
import sys


def test_no_folder_of_the_machine_makes_a_task_one_of_an_image() -> None:
    """The place of its own modules says so: every folder is there for this program."""
    code = """
import os
os.path.isdir = os.path.exists = lambda _: True
from dios.client.task_files import IN_IMAGE
print(IN_IMAGE)
"""
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "False\n"
