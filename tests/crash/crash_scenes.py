"""Scenes that wait most of their time: each has a data folder and a daemon of its own, so many can play at once."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from crash_yard import Yard

AT_ONCE = 9
Scene = Callable[..., None]


def play(folder: Path, scenes: dict[str, tuple[Scene, tuple[Any, ...]]], stack: ExitStack) -> dict[str, Future[None]]:
    """Play every scene ``(yard, *arguments)`` to its end or its failure; what runs in its yard ends with the stack.

    At the end of a scene that did not fail, its books are in balance.
    """
    pool = stack.enter_context(ThreadPoolExecutor(AT_ONCE))
    futures = {}
    for name, (scene, arguments) in scenes.items():
        yard = Yard(folder / name)
        stack.callback(yard.__exit__)
        futures[name] = pool.submit(_played, scene, yard, arguments)
    for future in futures.values():
        future.exception()
    return futures


def _played(scene: Scene, yard: Yard, arguments: tuple[Any, ...]) -> None:
    with yard:
        scene(yard, *arguments)
        for daemon in yard.daemons:
            daemon.kill()
        assert yard.faults() == []
