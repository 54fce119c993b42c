"""Every refusal that Interlock gives, as one family of exceptions.

A code is stable and machine-readable; a message says what is wrong and where; a hint says what to do next.
The CLI prints message and hint and exits with :attr:`InterlockError.exit_status`; the HTTP API answers
:attr:`InterlockError.http_status` with the same three fields.
"""

from __future__ import annotations

from typing import Any, ClassVar


class InterlockError(Exception):
    """Base of all refusals. Raise a subclass: each stands for one code."""

    code: ClassVar[str] = "internal"
    http_status: ClassVar[int] = 500
    exit_status: ClassVar[int] = 1

    def __init__(self, message: str, *, hint: str | None = None, details: dict[str, Any] | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.details = details or {}

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message


class NotFound(InterlockError):
    """No such run, route, agent or file."""

    code, http_status, exit_status = "not_found", 404, 3


class IllegalTransition(InterlockError):
    """The machine has no such move from the state that the run is in. Nothing changed."""

    code, http_status, exit_status = "illegal_transition", 409, 4


class StaleClaim(InterlockError):
    """The claim that this write came under is not the live one. Nothing changed."""

    code, http_status, exit_status = "stale_claim", 409, 4


class AlreadyClaimed(InterlockError):
    """Another holder has the run."""

    code, http_status, exit_status = "already_claimed", 409, 4


class Conflict(InterlockError):
    """The request contradicts what is there: a doubled id, a changed task, a second daemon."""

    code, http_status, exit_status = "conflict", 409, 4


class InvalidConfig(InterlockError):
    """A fault in interlock.yaml or an option; names file, line and key."""

    code, http_status, exit_status = "invalid_config", 422, 2


class InvalidInput(InterlockError):
    """A fault in a backlog, a task or an argument; names the place."""

    code, http_status, exit_status = "invalid_input", 422, 2


class Unauthorized(InterlockError):
    """No credentials, or wrong ones."""

    code, http_status, exit_status = "unauthorized", 401, 2


class Forbidden(InterlockError):
    """The credentials do not reach this far."""

    code, http_status, exit_status = "forbidden", 403, 2


class Unavailable(InterlockError):
    """The store or the daemon cannot serve now: busy, full, read-only, not running. Worth another try."""

    code, http_status, exit_status = "unavailable", 503, 5


class TooLarge(InterlockError):
    """More than a field, a file or a batch may hold."""

    code, http_status, exit_status = "too_large", 413, 2
