"""The cost model and the settings that an operator chose while the cluster runs (`dios sched set`).

They are stored with the shares, so they outlive coordinators, and hold until they are reset. Without a choice
the settings of the node apply (``StartOptions``).
"""

from __future__ import annotations

from collections.abc import Mapping

from dios.errors import DiosError, InvalidError
from dios.firmament import settings
from dios.firmament.models import catalogue
from dios.firmament.parameters import text_of
from dios.firmament.policies.stored_shares import StoredPolicy
from dios.firmament.scheduler import FlowScheduler
from dios.firmament.settings import SchedulerSettings

_NO_CHOICE = StoredPolicy("", (), (), 0.0)


class LiveSettings:
    """The choices of operators, applied to one scheduler; ``default_model`` is that of the node's settings.

    ``wall`` is the time in seconds since 1970 at which the scheduler's clock was 0.
    """

    def __init__(self, scheduler: FlowScheduler, default_model: str, wall: float) -> None:
        self._scheduler = scheduler
        self._default_model = default_model
        self._wall = wall
        self._chosen = _NO_CHOICE
        self.changed = False
        """True if a choice is not stored yet."""

    @property
    def stored(self) -> StoredPolicy | None:
        """The choices, to be stored; None if there never was one."""
        return self._chosen if self._chosen.set_at else None

    def set_model(self, name: str, parameters: Mapping[str, str], now: float) -> None:
        """Use another cost model.

        Raises:
            BadModelError: there is no such model or parameter, or the parameter cannot have this value.
        """
        self._apply(
            StoredPolicy(name, tuple(parameters.items()), self._chosen.settings, self._wall + now), now
        )
        self.changed = True

    def set_settings(self, words: Mapping[str, str], now: float) -> None:
        """Replace some of the settings.

        Raises:
            BadDescriptorError: there is no such setting, or it cannot have this value.
        """
        before = self._chosen
        merged = tuple({**dict(before.settings), **words}.items())
        self._apply(StoredPolicy(before.model, before.parameters, merged, self._wall + now), now)
        self.changed = True

    def reset(self, now: float) -> None:
        """Return to the settings of the node."""
        self._apply(StoredPolicy("", (), (), self._wall + now), now)
        self.changed = True

    def take_over(self, stored: StoredPolicy | None, now: float) -> None:
        """Use the choices of another coordinator, if they are later.

        Raises:
            InvalidError: this coordinator cannot apply them; it keeps its own.
        """
        if stored is None or stored.set_at <= self._chosen.set_at:
            return
        try:
            self._apply(stored, now)
        except DiosError as error:
            raise InvalidError(f"the chosen policy cannot be used here: {error}") from None

    def rows(self) -> list[dict[str, str]]:
        """Return each setting with its value, its default, and where the value comes from."""
        chosen, model = self._chosen, self._scheduler.model.name
        origin = "chosen" if chosen.model else "settings of the node"
        rows = [_row("model", model, self._default_model, origin)]
        given = dict(chosen.parameters)
        for name, default in catalogue.parameters(model).items():
            usual = text_of(default)
            rows.append(_row(f"{model}.{name}", given.get(name, usual), usual, _origin(given, name)))
        usual_settings, words = SchedulerSettings().words(), self._scheduler.settings.words()
        set_words = dict(chosen.settings)
        rows += [_row(name, words[name], usual_settings[name], _origin(set_words, name)) for name in words]
        return rows

    def _apply(self, chosen: StoredPolicy, now: float) -> None:
        """Check a choice as a whole, then use it."""
        before = self._chosen
        found = settings.changed(SchedulerSettings(), dict(chosen.settings))
        if (chosen.model, chosen.parameters) != (before.model, before.parameters):
            name = chosen.model or self._default_model
            self._scheduler.set_model(catalogue.make(name, **dict(chosen.parameters)), now)
        if found != self._scheduler.settings:
            self._scheduler.set_settings(found, now)
        self._chosen = chosen


def _origin(given: Mapping[str, str], name: str) -> str:
    return "chosen" if name in given else "default"


def _row(name: str, value: str, default: str, origin: str) -> dict[str, str]:
    return {"setting": name, "value": value, "default": default, "from": origin}
