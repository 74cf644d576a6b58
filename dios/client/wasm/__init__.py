"""WebAssembly modules as programs of tasks: the interface WASI, on the references and files of the task.

Read ``program`` first: it compiles a module and runs it. ``host_calls`` has the functions that the module may
import (WASI, snapshot preview 1), ``descriptors`` the files and directories that they act on,
``guest_memory`` the checked access to the module's memory, and ``codes`` the numbers of the interface.
Loaded only in a task whose program is such a module.
"""
