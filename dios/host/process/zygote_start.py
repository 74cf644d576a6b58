"""The program of a zygote: ``python -I -m dios.host.process.zygote_start FD`` runs ``zygote_main``.

It loads nothing before the fork handlers of other modules are watched.
"""

from __future__ import annotations

from dios import forks

if __name__ == "__main__":
    forks.watch_threads()

    from dios.host.process.zygote_main import main

    main()
