"""The description of the API (OpenAPI 3.1), made from the handlers and the types that they take and give.

The schemas of bodies are those by which bodies are read: what the description allows is taken, what it does not is refused.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from typing import Any

import msgspec
from litestar import Litestar
from litestar.handlers import HTTPRouteHandler
from litestar.params import HeaderParameter, ParameterKwarg, PathParameter, QueryParameter
from litestar.response import Stream
from litestar.routes import HTTPRoute
from litestar.typing import FieldDefinition

from interlock.api.asking import is_several, taken
from interlock.api.guard import OPEN, scope_for
from interlock.wire import Envelope

_REFUSALS = {
    401: "A token is needed, or the one that was sent is not known.",
    403: "The token does not reach so far, or the request comes from another site's page.",
    404: "There is no such thing.",
    409: "It contradicts what is there: a claim that is over (stale_claim), a run that another has (already_claimed).",
    413: "It is too large.",
    415: "The body is no JSON by its Content-Type.",
    422: "Something in the request is not as it has to be; the message names the place.",
    503: "The daemon or its store cannot serve now. Worth another try.",
}
_INTRODUCTION = """\
Runs, offers and claims of an Interlock daemon. Every refusal has the same envelope: a stable `code`, a `message` that names \
the place, a `hint` that says what to do, and `details` for programs. Whole numbers are written without a fraction (`1`, not `1.0`).

On this machine (loopback, and the socket file in the data folder) nobody is asked for a token; from everywhere else one is \
needed. Each operation says how far it has to reach: `read`, `agent` (which is `read` as well) or `operator` (which is both)."""
_EXAMPLES: dict[str, Any] = {
    "submit": {"title": "Fix the parser", "content": "It fails on tabs.", "tags": ["bug"], "priority": 5},
    "claim_next": {"agent_session": "laptop-1", "types": ["review.*"], "wait": 30},
    "claim": {"agent_session": "laptop-1", "lease_seconds": 600},
    "start": {"agent_session": "laptop-1", "fence": 1},
    "heartbeat": {"agent_session": "laptop-1", "fence": 1},
    "complete": {"agent_session": "laptop-1", "fence": 1, "result": {"tests": "green"}, "message": "built"},
    "fail": {"agent_session": "laptop-1", "fence": 1, "message": "the tests are red"},
    "release": {"agent_session": "laptop-1", "fence": 1},
    "defer": {"agent_session": "laptop-1", "fence": 1, "delay_seconds": 600},
    "block": {"agent_session": "laptop-1", "fence": 1, "question": "Which of the two branches?"},
    "append_log": {"agent_session": "laptop-1", "fence": 1, "offset": 0, "text": "began\n"},
    "report_usage": {"agent_session": "laptop-1", "fence": 1, "input_tokens": 1200, "output_tokens": 300},
    "answer": {"text": "The left one."},
    "cancel": {"message": "not needed any more"},
    "put_route": {"agent_id": "reviewer", "priority": 10, "max_concurrent": 2, "timeout_minutes": 30},
    "put_template": {"task": {"title": "Review ${branch}", "workflow_type": "review"}},
    "pause": {"message": "the budget is used up"},
}
_REF = "#/components/schemas/{name}"


def describe(app: Litestar, version: str) -> dict[str, Any]:
    """The whole document."""
    operations = list(_operations(app))
    types = [kind for _, _, handler in operations for kind in _types(handler)]
    schemas, components = msgspec.json.schema_components([*types, Envelope], ref_template=_REF)
    found = iter(schemas)
    paths: dict[str, dict[str, Any]] = {}
    for path, method, handler in operations:
        own = [next(found) for _ in _types(handler)]
        paths.setdefault(path, {})[method.lower()] = _operation(path, method, handler, own)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Interlock", "version": version, "description": _INTRODUCTION},
        "servers": [{"url": "/"}],
        "security": [{}, {"token": []}],
        "tags": _tags(app),
        "paths": dict(sorted(paths.items())),
        "components": {
            "schemas": components,
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer", "description": "`interlock token create NAME`"}
            },
            "responses": {
                str(status): {"description": words, "content": _json(_ref(Envelope))}
                for status, words in _REFUSALS.items()
            },
        },
    }


def _ref(kind: type) -> dict[str, Any]:
    return {"$ref": _REF.format(name=kind.__name__)}


def _operations(app: Litestar) -> Iterator[tuple[str, str, HTTPRouteHandler]]:
    for route in app.routes:
        if not isinstance(route, HTTPRoute):
            continue
        for handler in route.route_handlers:
            if handler.include_in_schema is False or handler.operation_id is None:
                continue
            for method in handler.http_methods:
                yield route.path_format, str(method), handler


def _types(handler: HTTPRouteHandler) -> list[Any]:
    """What is taken and what is given, where that is JSON."""
    kinds = []
    if handler.parsed_data_field is not None:
        kinds.append(taken(handler.parsed_data_field))
    if _gives_json(handler):
        kinds.append(handler.parsed_return_field.annotation)
    return kinds


def _gives_json(handler: HTTPRouteHandler) -> bool:
    return _media(handler) == _JSON


_JSON, _TEXT, _STREAM, _NOTHING = "application/json", "text/plain", "text/event-stream", ""


def _media(handler: HTTPRouteHandler) -> str:
    if handler.status_code == 204:
        return _NOTHING
    if handler.parsed_return_field.annotation is Stream:
        return _STREAM
    return _TEXT if str(handler.media_type) == _TEXT else _JSON


def _operation(path: str, method: str, handler: HTTPRouteHandler, own: list[dict[str, Any]]) -> dict[str, Any]:
    assert isinstance(handler.operation_id, str)
    name = handler.operation_id
    found = iter(own)
    said: dict[str, Any] = {
        "operationId": name,
        "summary": handler.summary,
        "description": inspect.cleandoc(handler.fn.__doc__ or ""),
        "tags": list(handler.resolve_tags()),
        "x-scope": None if path in OPEN else str(scope_for(method, path)),
    }
    parameters = [
        _parameter(named, field)
        for named, field in handler.parsed_fn_signature.parameters.items()
        if isinstance(field.kwarg_definition, ParameterKwarg)
    ]
    if parameters:
        said["parameters"] = parameters
    if handler.parsed_data_field is not None:
        said["requestBody"] = {
            "required": not handler.parsed_data_field.is_optional,
            "content": _json(next(found), _EXAMPLES.get(name)),
        }
    media = _media(handler)
    answer: dict[str, Any] = {"description": handler.response_description or "Done."}
    if media == _JSON:
        answer["content"] = _json(next(found))
    elif media != _NOTHING:
        answer["content"] = {media: {"schema": {"type": "string"}}}
    said["responses"] = {
        str(handler.status_code): answer,
        **{str(status): {"$ref": f"#/components/responses/{status}"} for status in _REFUSALS},
    }
    return said


def _json(schema: dict[str, Any], example: Any = None) -> dict[str, Any]:
    content: dict[str, Any] = {"schema": schema}
    if example is not None:
        content["example"] = example
    return {_JSON: content}


_PLACES: dict[type, str] = {QueryParameter: "query", PathParameter: "path", HeaderParameter: "header"}
_BOUNDS = {
    "ge": "minimum",
    "le": "maximum",
    "min_length": "minLength",
    "max_length": "maxLength",
    "pattern": "pattern",
    "min_items": "minItems",
    "max_items": "maxItems",
}


def _parameter(name: str, field: FieldDefinition) -> dict[str, Any]:
    kwarg = field.kwarg_definition
    assert isinstance(kwarg, ParameterKwarg)
    place = _PLACES[type(kwarg)]
    said: dict[str, Any] = {
        "name": kwarg.name or name,
        "in": place,
        "required": place == "path" or not field.has_default,
        "schema": _schema_of(field, kwarg),
    }
    if kwarg.description:
        said["description"] = kwarg.description
    if is_several(field):
        said |= {"style": "form", "explode": True}
    return said


def _schema_of(field: FieldDefinition, kwarg: ParameterKwarg | None) -> dict[str, Any]:
    inner = [each for each in field.inner_types if each.annotation is not type(None)] if field.is_optional else [field]
    assert len(inner) == 1, "a parameter is of one type"
    if is_several(inner[0]):
        member = inner[0].inner_types[0]
        deeper = member.kwarg_definition if isinstance(member.kwarg_definition, ParameterKwarg) else None
        schema: dict[str, Any] = {"type": "array", "items": _schema_of(member, deeper)}
    else:
        (plain,), components = msgspec.json.schema_components([inner[0].annotation], ref_template=_REF)
        schema = components[inner[0].annotation.__name__] if "$ref" in plain else plain
        schema = {key: value for key, value in schema.items() if key not in ("title", "description")}
    if kwarg is not None:
        schema |= {
            word: value for attribute, word in _BOUNDS.items() if (value := getattr(kwarg, attribute)) is not None
        }
    if field.has_default and field.default is not None:
        schema["default"] = field.default
    return schema


def _tags(app: Litestar) -> list[dict[str, str]]:
    """Each with what its controller says of itself."""
    seen: dict[str, str] = {}
    for _, _, handler in _operations(app):
        owner = getattr(sys.modules[handler.fn.__module__], handler.fn.__qualname__.partition(".")[0])
        for tag in handler.resolve_tags():
            seen.setdefault(tag, inspect.cleandoc(owner.__doc__ or ""))
    return [{"name": name, "description": words} for name, words in seen.items()]
