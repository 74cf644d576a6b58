"""An operator's own cost model that has failed, perhaps because the machine was busy."""

from __future__ import annotations

from dios.firmament.coordinator.live_settings import LiveSettings
from dios.firmament.models import catalogue
from dios.firmament.policies.stored_shares import StoredPolicy
from dios.firmament.scheduler import FlowScheduler
from dios.firmament.settings import SchedulerSettings

CHOSEN = StoredPolicy("mine", (), (), 5.0, "class Mine: ...")


def test_a_model_that_has_failed_is_opened_again_after_pauses_that_grow() -> None:
    """A late answer is no fact about the model; until then that of the node's settings is used."""
    scheduler = FlowScheduler(catalogue.make("spread"), SchedulerSettings(certify_every=1))
    live = LiveSettings(scheduler, "spread", 0.0)
    live.take_over(CHOSEN, 0.0)
    now, opened = 100.0, [live.to_open]
    for pause_s in (30, 60, 120, 240, 480, 600, 600):
        text = live.fall_back("did not answer within 10 s", now)
        assert f"tried again in {pause_s} s" in text
        for until in (pause_s - 1, pause_s):
            live.retry(now + until)
            opened.append(live.to_open)
        now += pause_s
    assert opened == [CHOSEN, *[None, CHOSEN] * 7]
    assert scheduler.model.name == "spread"


def test_a_solver_of_a_former_version_loses_nothing_else_of_a_policy() -> None:
    """The model and the other settings hold; a later change keeps them, without the former solver."""
    for solver in ("cost_scaling", "relaxation", "successive_shortest", "race"):
        scheduler = FlowScheduler(catalogue.make("spread"), SchedulerSettings(certify_every=1))
        live = LiveSettings(scheduler, "spread", 0.0)
        live.take_over(StoredPolicy("coco", (), (("solver", solver), ("preemption", "false")), 5.0), 0.0)
        assert scheduler.model.name == "coco"
        live.set_settings({"migration": "false"}, 9.0)
        assert live.stored is not None
        assert dict(live.stored.settings) == {"preemption": "false", "migration": "false"}
