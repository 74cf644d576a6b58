"""The cost model and the settings that an operator chose while the cluster runs (`dios sched set`).

They are stored with the shares, so they outlive coordinators, and hold until they are reset. Without a choice
the settings of the node apply (``StartOptions``).

An operator's own model runs in a task, which the coordinator opens (``model_tasks``). Until it is open, and
for a while after it has failed, the model of the node's settings is used.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from msgspec.structs import replace

from dios.errors import DiosError, InvalidError
from dios.firmament import settings
from dios.firmament.coordinator.answers import SettingAnswer
from dios.firmament.custom_model.remote_model import RemoteModel
from dios.firmament.models import catalogue
from dios.firmament.models.cost_terms import BadModelError
from dios.firmament.models.protocol import CostModel
from dios.firmament.parameters import text_of
from dios.firmament.policies.stored_shares import StoredPolicy
from dios.firmament.scheduler import FlowScheduler
from dios.firmament.settings import SchedulerSettings

_NO_CHOICE = StoredPolicy("", (), (), 0.0)
_FORMER_SOLVERS: Final = frozenset(
    ("solver", name) for name in ("cost_scaling", "relaxation", "successive_shortest", "race")
)
"""Choices of version 0.2 that count as none, so that the rest of a policy stays."""

_RETRY_S: Final = (30.0, 600.0)
"""The first and the longest pause before a model that has failed is opened again. It is doubled each time."""


class LiveSettings:
    """The choices of operators, applied to one scheduler; ``default_model`` is that of the node's settings.

    ``wall`` is the time in seconds since 1970 at which the scheduler's clock was 0.
    """

    def __init__(self, scheduler: FlowScheduler, default_model: str, wall: float) -> None:
        self._scheduler = scheduler
        self._default_model = default_model
        self._wall = wall
        self._chosen = _NO_CHOICE
        self._failure = ""
        """The reason why the chosen model is not used."""
        self._failures = 0
        self._retry_at = 0.0
        self._offered: RemoteModel | None = None
        self.changed = False
        """True if a choice is not stored yet."""

    @property
    def stored(self) -> StoredPolicy | None:
        """The choices, to be stored; None if there never was one."""
        return self._chosen if self._chosen.set_at else None

    @property
    def to_open(self) -> StoredPolicy | None:
        """The choice of an own model that has to be opened; None if there is none."""
        chosen = self._chosen
        waits = (
            bool(chosen.source) and not self._failure and not isinstance(self._scheduler.model, RemoteModel)
        )
        return chosen if waits else None

    def offer(self, model: RemoteModel) -> None:
        """Take an open model for the choice of it that follows, or that was made before."""
        self.discard_offer()
        self._offered = model

    def set_model(self, name: str, parameters: Mapping[str, str], now: float, source: str = "") -> None:
        """Use another cost model; an operator's own one, with its ``source``, has been offered.

        Raises:
            BadModelError: there is no such model or parameter, or the parameter cannot have this value.
        """
        if source:
            if self._offered is None:
                raise BadModelError("the model is not open; set it again")
            name = self._offered.name
        self._apply(
            StoredPolicy(name, tuple(parameters.items()), self._chosen.settings, self._wall + now, source),
            now,
        )
        self.changed = True

    def use_offered(self, chosen: StoredPolicy, now: float) -> None:
        """Use the offered model if it is still the chosen one."""
        if self.to_open == chosen and self._offered is not None:
            self._use(self._take_offered(), now)
        self.discard_offer()

    def suspend(self, now: float) -> None:
        """End an operator's model while another coordinator schedules; ``to_open`` names it afterwards."""
        if isinstance(self._scheduler.model, RemoteModel):
            self._use(catalogue.make(self._default_model), now)

    def fall_back(self, reason: str, now: float) -> str:
        """Use the model of the node's settings, because the chosen one has failed; return a text about it.

        A model that was late may be good: it is opened again after pauses that grow.
        """
        self._failure = reason
        pause_s = min(_RETRY_S[0] * 2 ** min(self._failures, 16), _RETRY_S[1])
        self._failures += 1
        self._retry_at = now + pause_s
        self._use(catalogue.make(self._default_model), now)
        return (
            f"the model {self._chosen.model} failed ({reason}), so {self._default_model} is used instead."
            f" It is tried again in {pause_s:.0f} s; `dios sched set-model` sets a mended or another one."
        )

    def retry(self, now: float) -> None:
        """Let ``to_open`` name a model that has failed, if its pause is over."""
        if self._failure and now >= self._retry_at:
            self._failure = ""

    def set_settings(self, words: Mapping[str, str], now: float) -> None:
        """Replace some of the settings.

        Raises:
            BadDescriptorError: there is no such setting, or it cannot have this value.
        """
        before = self._chosen
        merged = tuple({**dict(before.settings), **words}.items())
        self._apply(replace(before, settings=merged, set_at=self._wall + now), now)
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
        settings = tuple(word for word in stored.settings if word not in _FORMER_SOLVERS)
        try:
            self._apply(replace(stored, settings=settings), now)
        except DiosError as error:
            raise InvalidError(f"the chosen policy cannot be used here: {error}") from None

    def rows(self) -> list[SettingAnswer]:
        """Return each setting with its value, its default, and where the value comes from."""
        chosen, model = self._chosen, self._scheduler.model.name
        origin = "chosen" if chosen.model == model else "settings of the node"
        if chosen.source and chosen.model != model:
            why = self._failure or "it is being opened"
            origin = f"settings of the node, because {chosen.model} was chosen, and: {why}"
        rows = [_row("model", model, self._default_model, origin)]
        given = dict(chosen.parameters) if chosen.model == model else {}
        for name, usual in self._usual_parameters().items():
            rows.append(_row(f"{model}.{name}", given.get(name, usual), usual, _origin(given, name)))
        usual_settings, words = SchedulerSettings().words(), self._scheduler.settings.words()
        set_words = dict(chosen.settings)
        rows += [_row(name, words[name], usual_settings[name], _origin(set_words, name)) for name in words]
        return rows

    def _apply(self, chosen: StoredPolicy, now: float) -> None:
        """Check a choice as a whole, then use it."""
        before = self._chosen
        wanted = settings.changed(SchedulerSettings(), dict(chosen.settings))
        if self._offered is not None or _model_of(chosen) != _model_of(before):
            self._use(self._made(chosen), now)
            self._failure, self._failures = "", 0
        if wanted != self._scheduler.settings:
            self._scheduler.set_settings(wanted, now)
        self._chosen = chosen

    def _made(self, chosen: StoredPolicy) -> CostModel:
        """Return the chosen model; that of the node's settings if it is an own model that is not open."""
        if chosen.source:
            return catalogue.make(self._default_model) if self._offered is None else self._take_offered()
        return catalogue.make(chosen.model or self._default_model, **dict(chosen.parameters))

    def _use(self, model: CostModel, now: float) -> None:
        before = self._scheduler.model
        self._scheduler.set_model(model, now)
        if isinstance(before, RemoteModel):
            before.close()

    def _take_offered(self) -> RemoteModel:
        offered, self._offered = self._offered, None
        assert offered is not None  # noqa: S101 - callers have checked
        return offered

    def discard_offer(self) -> None:
        """End an offered model that is not used."""
        if self._offered is not None:
            self._take_offered().close()

    def _usual_parameters(self) -> dict[str, str]:
        model = self._scheduler.model
        if isinstance(model, RemoteModel):
            return model.parameters
        return {name: text_of(default) for name, default in catalogue.parameters(model.name).items()}


def _model_of(chosen: StoredPolicy) -> tuple[object, ...]:
    return chosen.model, chosen.parameters, chosen.source


def _origin(given: Mapping[str, str], name: str) -> str:
    return "chosen" if name in given else "default"


def _row(name: str, value: str, default: str, origin: str) -> SettingAnswer:
    return {"setting": name, "value": value, "default": default, "from": origin}
