"""``dios sched``: the family of commands about the cluster scheduler, Firmament.

Firmament is imported inside the commands that need it, because it needs the extra ``cluster``.
"""

from __future__ import annotations

from typing import Final

from dios.cli.common.application import CommandApplication
from dios.cli.scheduling import live

app: Final = CommandApplication(no_args_is_help=True, help="The cluster scheduler, Firmament.")
app.command("status", epilog=live.STATUS)(live.status)
app.command("models", epilog=live.MODELS)(live.models)
app.command("set-model", epilog=live.SET_MODEL)(live.set_model)
app.command("check-model", epilog=live.CHECK_MODEL)(live.check_model)
app.command("settings", epilog=live.SETTINGS)(live.settings)
app.command("set", epilog=live.SET)(live.set_settings)
app.command("reset", epilog=live.RESET)(live.reset)
app.command("history", epilog=live.HISTORY)(live.history)
app.command("export", epilog=live.EXPORT)(live.export)

explain_app: Final = CommandApplication()
explain_app.command("explain", epilog=live.EXPLAIN)(live.explain)
