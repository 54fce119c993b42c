"""What a role adds to the prompt."""

from __future__ import annotations

import errno
from pathlib import Path

from interlock.domain.settings import Settings
from interlock.domain.task import Task


def role_text(task: Task, settings: Settings, folder: Path) -> str | None:
    """The text of the prompt file of a task's role, looked for from ``folder``; None when it has none. Raises OSError."""
    role = settings.roles.get(task.role or settings.default_role or "")
    if role is None or role.prompt is None:
        return None
    path = folder / role.prompt
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        what = f"the prompt file of role '{role.name}' cannot be read ({error})"
        raise OSError(errno.EINVAL, what, str(path)) from error
