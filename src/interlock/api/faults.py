"""Refusals as answers: the one envelope, whatever went wrong."""

from __future__ import annotations

import logging
from typing import Any

import msgspec
from litestar import Request, Response
from litestar.exceptions import HTTPException, ValidationException

from interlock.domain.errors import InterlockError
from interlock.wire import Envelope, Fault

log = logging.getLogger("interlock")

_CODES = {
    400: "invalid_input",
    401: "unauthorized",
    403: "forbidden",
    404: "not_found",
    405: "method_not_allowed",
    413: "too_large",
    415: "invalid_input",
    422: "invalid_input",
    503: "unavailable",
}
_HINTS = {
    404: "GET /openapi.json lists what there is",
    405: "GET /openapi.json lists what there is",
    413: "send it in smaller pieces",
    415: "send JSON, with Content-Type: application/json",
}


def envelope(code: str, message: str, hint: str | None = None, details: dict[str, Any] | None = None) -> Envelope:
    """A refusal for the wire."""
    return Envelope(error=Fault(code=code, message=message, hint=hint, details=details or {}))


def encoded(error: InterlockError) -> bytes:
    """The same as it is sent."""
    return msgspec.json.encode(envelope(error.code, error.message, error.hint, error.details))


def of_ours(_: Request[Any, Any, Any], error: InterlockError) -> Response[Envelope]:
    """A refusal of the service."""
    return Response(envelope(error.code, error.message, error.hint, error.details), status_code=error.http_status)


def of_http(_: Request[Any, Any, Any], error: HTTPException) -> Response[Envelope]:
    """A refusal of the framework: what cannot be read is 422, and says where."""
    status = error.status_code
    message, details = error.detail, {}
    if isinstance(error, ValidationException) or status == 400:
        status = 422
        places = error.extra if isinstance(error.extra, list) else []
        if places:
            details = {"faults": places}
            message = "; ".join(_place(each) for each in places)
    code = _CODES.get(status, "internal" if status >= 500 else "invalid_input")
    return Response(envelope(code, message, _HINTS.get(status), details), status_code=status, headers=error.headers)


def _place(fault: Any) -> str:
    if not isinstance(fault, dict):
        return str(fault)
    where = str(fault.get("key") or "").removeprefix("data.")
    return f"{where}: {fault.get('message')}" if where else str(fault.get("message"))


def of_us(request: Request[Any, Any, Any], error: Exception) -> Response[Envelope]:
    """A fault of this program. What it was about is in the log, not in the answer."""
    log.error("the API failed at %s %s", request.method, request.url.path, exc_info=error)
    return Response(envelope("internal", "this is a fault of Interlock", "see the daemon's log"), status_code=500)
