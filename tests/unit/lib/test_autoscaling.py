"""A supervised service follows its load by a rule, one replica at a time."""

from __future__ import annotations

import pytest

from dios.errors import InvalidError
from dios.firmament.models.green import ServiceScaler
from dios.lib.supervised.autoscaling import ServiceAutoscaler
from dios.lib.supervised.services import ReplicaStatus, ServiceStatus


class OneService:
    """A service whose replicas run as soon as they are wanted, unless ``missing`` of them do not."""

    def __init__(self, wanted: int = 1) -> None:
        self.wanted = wanted
        self.missing = 0
        self.updating = False

    def describe(self, name: str) -> ServiceStatus:
        """Its status; a replica of which there is no task does not run."""
        places = tuple(ReplicaStatus(slot, 1, None) for slot in range(self.wanted))
        return _Status(name, "", self.wanted, 1, 0, self.updating, places, missing=self.missing)

    def scale(self, name: str, replicas: int) -> None:
        """Change the number."""
        self.wanted = replicas


class _Status(ServiceStatus):
    """A status that counts running replicas without tasks."""

    __slots__ = ("missing",)

    def __init__(self, *fields: object, missing: int) -> None:
        super().__init__(*fields)  # type: ignore[arg-type] # those of the base class
        object.__setattr__(self, "missing", missing)

    @property
    def running(self) -> int:
        """All but the missing ones."""
        return self.wanted - int(getattr(self, "missing", 0))


def scaled(service: OneService, loads: list[float]) -> list[int]:
    """The number of replicas after each load; a replica serves 100."""
    scaler = ServiceAutoscaler(service, "web", ServiceScaler(1, 4), 100.0)
    return [scaler.step(load) for load in loads]


def test_a_service_grows_above_55_per_cent_and_shrinks_below_15() -> None:
    """One replica for each step, between the least and the most; in between the number stays."""
    service = OneService()
    assert scaled(service, [50, 60, 120, 300, 300, 300]) == [1, 2, 3, 4, 4, 4]
    assert scaled(service, [200, 50, 40, 40, 25, 10]) == [4, 3, 2, 2, 1, 1]
    assert service.wanted == 1


def test_a_service_does_not_grow_while_a_replica_is_missing() -> None:
    """A replica that has not started yet will take its part; but an idle service may shrink."""
    service = OneService(2)
    service.missing = 1
    assert scaled(service, [150]) == [2]
    assert scaled(service, [5]) == [1]


def test_an_update_is_left_alone() -> None:
    """Replicas of two versions run: their number is no measure."""
    service = OneService(2)
    service.updating = True
    assert scaled(service, [1000, 0]) == [2, 2]


def test_loads_and_capacities_must_be_numbers() -> None:
    """The message has the value."""
    with pytest.raises(InvalidError, match="nan"):
        scaled(OneService(), [float("nan")])
    with pytest.raises(InvalidError, match="capacity"):
        ServiceAutoscaler(OneService(), "web", ServiceScaler(), 0.0)
