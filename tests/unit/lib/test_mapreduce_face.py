from __future__ import annotations

from dios.lib import mapreduce


def test_the_public_face_is_listed() -> None:
    """Exactly these names are promised to programs, and each is there."""
    assert sorted(mapreduce.__all__) == [
        "JobFailedError",
        "JobProgress",
        "JobResult",
        "OnProgress",
        "Role",
        "Source",
        "Sources",
        "TaskReport",
        "run",
    ]
    assert all(hasattr(mapreduce, name) for name in mapreduce.__all__)
