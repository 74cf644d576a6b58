"""The program of a zygote: ``python -I -m dios.host.process.zygote_start FD`` runs ``zygote_main``.

It loads nothing before the fork handlers of other modules are watched.
"""

from __future__ import annotations

from dios.host.process import fork_handlers

if __name__ == "__main__":
    fork_handlers.watch()

    from dios.host.process.zygote_main import main

    main()
