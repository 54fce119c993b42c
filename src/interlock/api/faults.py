"""Refusals as answers: the one envelope, whatever went wrong."""

from __future__ import annotations

import logging
from enum import Enum
from typing import Any

import msgspec
from litestar import Request, Response
from litestar.exceptions import (
    HTTPException,
    MethodNotAllowedException,
    NotFoundException,
    ValidationException,
)
from litestar.params import ParameterKwarg
from litestar.status_codes import HTTP_413_REQUEST_ENTITY_TOO_LARGE
from litestar.typing import FieldDefinition

from interlock.api.asking import fields_of, refusal
from interlock.domain.errors import InterlockError, InvalidInput, NotFound, TooLarge
from interlock.sources.faults import nearest, shown
from interlock.wire import Envelope, Fault

log = logging.getLogger("interlock")

BODY_LIMIT = 4 * 1024 * 1024
"""Bytes of a request's body."""
_CODES = {401: "unauthorized", 403: "forbidden", 404: "not_found", 405: "method_not_allowed", 413: "too_large"}
_LIST = "GET /openapi.json lists what there is"


class MethodNotAllowed(InterlockError):
    """The path is there, and not for this method."""

    code, http_status, exit_status = "method_not_allowed", 405, 2


class Malformed(InterlockError):
    """What came is no HTTP request."""

    code, http_status, exit_status = "invalid_input", 400, 2


class NotJson(InterlockError):
    """A body of another type than JSON."""

    code, http_status, exit_status = "invalid_input", 415, 2


class Slow(InterlockError):
    """A request that does not come to its end."""

    code, http_status, exit_status = "request_timeout", 408, 5


def too_large() -> TooLarge:
    """Of a body."""
    return TooLarge(
        f"the body is larger than {BODY_LIMIT} bytes",
        hint="send it in pieces: several submits, several log entries",
        details={"limit": BODY_LIMIT},
    )


def envelope(code: str, message: str, hint: str | None = None, details: dict[str, Any] | None = None) -> Envelope:
    """A refusal for the wire."""
    return Envelope(error=Fault(code=code, message=message, hint=hint, details=details or {}))


def encoded(error: InterlockError) -> bytes:
    """The same as it is sent."""
    return msgspec.json.encode(envelope(error.code, error.message, error.hint, error.details))


def of_ours(_: Request[Any, Any, Any], error: InterlockError) -> Response[Envelope]:
    """A refusal of the service."""
    return Response(envelope(error.code, error.message, error.hint, error.details), status_code=error.http_status)


def of_http(request: Request[Any, Any, Any], error: HTTPException) -> Response[Envelope]:
    """A refusal of the framework: what cannot be read is 422, and says where."""
    if isinstance(error, ValidationException):
        return of_ours(request, _unfit(request, error))
    status = error.status_code
    headers = error.headers
    if isinstance(error, NotFoundException):
        return of_ours(request, _nowhere(request))
    if isinstance(error, MethodNotAllowedException):
        known = {name.strip() for name in (headers or {}).get("allow", "").split(",")}
        allowed = ", ".join(sorted(known | ({"HEAD"} if "GET" in known else set())))
        headers = {"allow": allowed}
        refused = MethodNotAllowed(f"{request.method} is not for {_path(request)}", hint=f"allowed: {allowed}")
        return Response(envelope(refused.code, refused.message, refused.hint), status_code=405, headers=headers)
    if status == HTTP_413_REQUEST_ENTITY_TOO_LARGE:
        return of_ours(request, too_large())
    if status == 400:
        status = 422
    if status >= 500:
        # The one that the framework raises by itself is for a client that went away: nobody reads this.
        return Response(envelope("internal", error.detail), status_code=status, headers=headers)
    return Response(
        envelope(_CODES.get(status, "invalid_input"), error.detail, _LIST), status_code=status, headers=headers
    )


def _nowhere(request: Request[Any, Any, Any]) -> InterlockError:
    path = request.scope["path"]
    near = nearest(path, [route.path_format for route in request.app.routes])
    return NotFound(f"there is nothing at {_path(request)}", hint=f"did you mean {near}? {_LIST}" if near else _LIST)


def _path(request: Request[Any, Any, Any]) -> str:
    return shown(request.scope["path"], 200)[1:-1]


def _unfit(request: Request[Any, Any, Any], error: ValidationException) -> InterlockError:
    """Parameters that are not as they should be, or a body that is not there."""
    faults = [each for each in error.extra if isinstance(each, dict)] if isinstance(error.extra, list) else []
    field = request.route_handler.parsed_data_field
    if field is not None and any(fault.get("key") == "data" for fault in faults):
        names = ", ".join(fields_of(field.annotation))
        return InvalidInput("this needs a body", hint=f"send a JSON object; it takes: {names}")
    found = [_of_parameter(request, fault) for fault in faults if fault.get("key")]
    if not found:
        return InvalidInput(error.detail, hint=_LIST)
    details = {"parameters": [each.details.get("field") for each in found]}
    return InvalidInput("; ".join(each.message for each in found), hint=found[0].hint, details=details)


def _of_parameter(request: Request[Any, Any, Any], fault: dict[str, Any]) -> InterlockError:
    key, said = str(fault["key"]), str(fault.get("message"))
    name = key.partition("[")[0]
    field = request.route_handler.parsed_fn_signature.parameters.get(name)
    if field is not None and isinstance(field.kwarg_definition, ParameterKwarg):
        key = (field.kwarg_definition.name or name) + key[len(name) :]
    refused = refusal(f"{said} - at `$.{key}`", dict)
    if field is not None and "enum" in said:
        options = [str(option) for kind in _enums(field) for option in kind]
        near = nearest(said.rpartition(" ")[2].strip("'"), options)
        refused.hint = f"did you mean {near}?" if near else f"one of: {', '.join(options)}"
    return refused


def _enums(field: FieldDefinition) -> list[type[Enum]]:
    here = [field.annotation] if isinstance(field.annotation, type) and issubclass(field.annotation, Enum) else []
    return here + [kind for inner in field.inner_types for kind in _enums(inner)]


def of_us(request: Request[Any, Any, Any], error: Exception) -> Response[Envelope]:
    """A fault of this program. What it was about is in the log, not in the answer."""
    return of_ours(request, internal(request.method, request.scope["path"], error))


def internal(method: str, path: str, error: Exception) -> InterlockError:
    """A fault of this program, noted in the log."""
    log.error("the API failed at %s %s", method, path, exc_info=error)
    return InterlockError("this is a fault of Interlock", hint="the daemon's log says what happened")
