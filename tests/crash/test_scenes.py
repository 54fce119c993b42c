"""Everything that has to wait for a clock, a lease or a backoff: played at once, judged one by one."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import ExitStack

import crash_clock_scenes
import crash_sleeper_scenes
import crash_wait_scenes
import pytest
from crash_scenes import play

SCENES = {
    **{scene.__name__: (scene, ()) for scene in (*crash_sleeper_scenes.SCENES, *crash_wait_scenes.SCENES)},
    **{
        f"{scene.__name__}_{direction}": (scene, (jump_ms,))
        for scene in crash_clock_scenes.SCENES
        for direction, jump_ms in crash_clock_scenes.JUMPS.items()
    },
}


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Future[None]]]:
    """All of them, each ended or failed."""
    with ExitStack() as stack:
        yield play(tmp_path_factory.mktemp("scenes"), SCENES, stack)


@pytest.mark.slow
@pytest.mark.parametrize("scene", SCENES)
def test_scene(played: dict[str, Future[None]], scene: str) -> None:
    played[scene].result()
