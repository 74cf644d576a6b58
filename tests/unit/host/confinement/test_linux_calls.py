"""The thin functions over system calls that Python does not offer."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import threading

from dios.host.confinement import linux_calls

SIGNALLED = """
import os, signal, threading
from dios.host.confinement import linux_calls

def interrupt():
    signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1)

got = []
signal.signal(signal.SIGUSR1, lambda number, frame: got.append(number))
pid, _ = linux_calls.clone3(0, settid=linux_calls.tid_address())
if pid:
    os._exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
thread = threading.Thread(target=interrupt)
thread.start()
thread.join()
os._exit(got != [signal.SIGUSR1])
"""


def test_the_id_of_the_calling_thread_is_at_its_address() -> None:
    """The C library has the id there, whichever address the kernel has for its end."""
    address = linux_calls.tid_address()
    assert ctypes.c_int.from_address(address).value == threading.get_native_id()


def test_a_thread_of_a_fork_can_be_signalled() -> None:
    """The fork's first thread has its own id, with which another thread of it sends a signal."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", SIGNALLED], env=environment, check=True, timeout=60)
