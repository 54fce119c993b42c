"""Stands before the program of a keeper while coverage is measured: ``python -I -S THIS PACKAGES PROGRAM FD WHO``.

A keeper runs without the folder of packages (PACKAGES) that would start coverage by itself. What a child of it has run is
written down before it becomes the agent, whose environment is left as it is.
"""

from __future__ import annotations

import os
import runpy
import sys
from contextlib import suppress
from typing import Any

packages, program = sys.argv[1:3]
del sys.argv[1:3]
sys.path.append(packages)

import coverage  # noqa: E402

measuring = coverage.process_startup()
execve = os.execve


def save_and_execve(*words: Any) -> None:
    if measuring is not None:
        with suppress(Exception):
            measuring.save()
    execve(*words)


os.execve = save_and_execve  # type: ignore[assignment]
runpy.run_path(program, run_name="__main__")
