"""How requests are read: JSON into the very type that a handler takes, strictly, and query parameters that somebody looks at.

A fault names its place (``tasks[3].context.files``) and what would be right there. Text follows the rules of backlogs: a name is
one line without control characters; text may have line breaks and tabs, and no other control characters. What an agent says
(output, messages, questions, results), ``metadata`` and ``extra`` are data, which may hold whatever JSON can; who shows it
makes it safe.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from functools import cache
from typing import Any
from urllib.parse import parse_qsl

import msgspec
from litestar import Request, Response
from litestar.params import QueryParameter
from litestar.routes import BaseRoute, HTTPRoute
from litestar.typing import FieldDefinition
from msgspec import inspect as shapes

from interlock.domain.errors import InterlockError, InvalidInput, TooLarge
from interlock.sources.faults import nearest, shown
from interlock.wire import LINE, NAME, TEXT

DEPTH = 100
"""Levels of objects and lists. What is kept must be readable wherever it is read again."""
BULK = 100_000
"""Characters. What is longer than a field that may hold so much is too large; in a shorter field it is a fault like others."""
_JSON_HINT = "send JSON (RFC 8259) in UTF-8"
_PLACE = re.compile(r"^(?P<fault>.*?)(?: - at `(?P<key>key in )?\$(?P<path>.*)`)?$", re.DOTALL)
_UNKNOWN = re.compile(r"Object contains unknown field `(?P<name>.*)`", re.DOTALL)
_MISSING = re.compile(r"Object missing required field `(?P<name>.*)`")
_LENGTH = re.compile(r"Expected `\w+` of length <= (?P<most>\d+)")
_PATTERN = re.compile(r"Expected `str` matching regex (?P<pattern>.*)", re.DOTALL)
_TYPE = re.compile(r"Expected `(?P<wanted>[^`]*)`, got `(?P<found>[^`]*)`")
_RANGE = re.compile(r"Expected `(?:int|float)` (?P<bound>[<>]=? ?[-0-9.e+]+)")
_STEP = re.compile(r"\.(?P<field>[^.\[\]]+)|\[[^\]]*\]")
_HALF = re.compile(rb"\\u[dD][89a-fA-F]")
_ENDS = {
    repr(LINE): ("it has to be one line without control characters, and not blank", "remove them"),
    repr(NAME): ("it has to be one line without control characters and blanks around it", "remove them"),
    repr(TEXT): ("it has control characters", "remove them: of those only tabs and line breaks belong into text"),
}
_RULES = {
    "uuid": "a UUID",
    "datetime": "a time with zone, such as 2026-07-01T09:00:00Z",
}


class Asked(Request[Any, Any, Any]):
    """A request whose body is read into the type that its handler takes."""

    async def json(self) -> Any:
        """The body as that type. Raises InvalidInput or TooLarge."""
        field = self.route_handler.parsed_data_field
        assert field is not None
        return read(await self.body(), taken(field))


def taken(field: FieldDefinition) -> Any:
    """The type of a body that is sent: one that may be left out is None in the handler, and not null on the wire."""
    if not field.is_optional:
        return field.annotation
    kinds = [inner.annotation for inner in field.inner_types if inner.annotation is not type(None)]
    assert len(kinds) == 1, "a body that may be left out is of one type"
    return kinds[0]


def read(body: bytes, wanted: Any) -> Any:
    """JSON as a value of type ``wanted``. Raises InvalidInput, and TooLarge for text beyond bounds."""
    try:
        value = _decoder(wanted).decode(body)
        if _level(_STRUCTURE.decode(body.decode())) > DEPTH:
            raise RecursionError
    except msgspec.ValidationError as error:
        raise refusal(str(error), wanted) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        what = str(error)
        if _HALF.search(body) and ("truncated" in what or "surrogate" in what):
            what = "half a surrogate pair (\\uD800 to \\uDFFF) is no character"
        raise InvalidInput(f"the body is no JSON: {what}", hint=_JSON_HINT) from None
    except RecursionError:
        raise InvalidInput("the body is nested too deeply", hint=f"send at most {DEPTH} levels") from None
    except ValueError as error:
        raise InvalidInput(f"the body is no JSON: {error}", hint=_JSON_HINT) from None
    return value


@cache
def _decoder(wanted: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(wanted)


def _once(pairs: list[tuple[str, Any]]) -> int:
    """Of an object only the depth is kept."""
    if len(pairs) > 1 and len(pairs) != len({name for name, _ in pairs}):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise InvalidInput(f"the key {shown(twice)} is there twice in an object", hint="keep one of them")
    return 1 + max((_level(value) for _, value in pairs), default=0)


def _level(value: Any) -> int:
    """Depth of what :func:`read` keeps of a value: ints are depths of objects, numbers and text are text."""
    if type(value) is int:
        return value
    return 1 + max(map(_level, value), default=0) if type(value) is list else 0


def refusal(said: str, wanted: Any) -> InterlockError:
    """What msgspec says of a value that is no ``wanted``, in the words of this program."""
    found = _PLACE.match(said)
    assert found is not None
    fault, path = found["fault"], found["path"] or ""
    place = path.removeprefix(".")
    if unknown := _UNKNOWN.fullmatch(fault):
        return _unknown(unknown["name"], place, _struct_at(wanted, path))
    if missing := _MISSING.fullmatch(fault):
        where = f"{place}.{missing['name']}" if place else missing["name"]
        return InvalidInput(f"{where}: is missing", hint="give it", details={"field": where})
    words, hint = _words(fault)
    details = {"field": place} if place else {}
    if found["key"]:
        place += " (a key of it)"
    message = f"{place or 'the body'}: {words}"
    if (length := _LENGTH.fullmatch(fault)) and int(length["most"]) >= BULK:
        return TooLarge(message, hint="shorten it", details=details)
    return InvalidInput(message, hint=hint, details=details)


def _words(fault: str) -> tuple[str, str | None]:
    if pattern := _PATTERN.fullmatch(fault):
        form = pattern["pattern"]
        return _ENDS.get(form, (f"it does not have the form {form}", "GET /openapi.json says what is taken"))
    if length := _LENGTH.fullmatch(fault):
        return f"it is too long: at most {length['most']}", "shorten it"
    if bound := _RANGE.fullmatch(fault):
        return f"it has to be {bound['bound']}", "give a number in this range"
    if wrong := _TYPE.fullmatch(fault):
        return f"{wrong['wanted']} is expected, found {wrong['found']}", "GET /openapi.json says what is taken"
    if "RFC3339" in fault or "timezone" in fault:
        return fault, f"write {_RULES['datetime']}"
    return fault, "GET /openapi.json says what is taken"


def _unknown(name: str, place: str, known: Iterable[str]) -> InvalidInput:
    names = list(known)
    near = nearest(name, names)
    where = f"{place}.{name[:100]}" if place else name[:100]
    hint = f"did you mean {near}?" if near else f"it takes: {', '.join(names)}" if names else None
    return InvalidInput(f"{shown(where, 200)[1:-1]}: there is no such field", hint=hint, details={"field": where})


def fields_of(wanted: Any) -> list[str]:
    """Names of the fields of a type, or of the first of its alternatives that has any."""
    return _struct_at(wanted, "")


def _struct_at(wanted: Any, path: str) -> list[str]:
    here = [shapes.type_info(wanted)]
    for step in _STEP.finditer(path):
        here = [below for one in here for below in _below(one, step["field"])]
    here = [inner for one in here for inner in _alternatives(one)]
    for one in here:
        if isinstance(one, shapes.StructType):
            return [field.encode_name for field in one.fields]
    return []


def _alternatives(one: shapes.Type) -> list[shapes.Type]:
    if isinstance(one, shapes.Metadata):
        return _alternatives(one.type)
    if isinstance(one, shapes.UnionType):
        return [inner for each in one.types for inner in _alternatives(each)]
    return [one]


def _below(one: shapes.Type, field: str | None) -> list[shapes.Type]:
    found: list[shapes.Type] = []
    for each in _alternatives(one):
        if field is not None and isinstance(each, shapes.StructType):
            found += [known.type for known in each.fields if known.encode_name == field]
        elif field is None and isinstance(each, shapes.ListType | shapes.VarTupleType):
            found.append(each.item_type)
    return found


_STRUCTURE = json.JSONDecoder(object_pairs_hook=_once, parse_int=str, parse_float=str)
"""Of a body that could be read: whether a key is there twice, and how deep it is."""


async def before(request: Request[Any, Any, Any]) -> Response[None] | None:
    """Before a handler: what no handler looks at. An answer goes in place of the handler's."""
    if request.scope["method"] == "OPTIONS":
        return Response(None, status_code=204, headers={"Allow": _allowed(request)})
    _check_query(request)
    return None


def _allowed(request: Request[Any, Any, Any]) -> str:
    # Of several handlers of a path the framework names the methods of one.
    template = request.scope["path_template"]
    methods = {str(method) for route in request.app.routes for method in _methods(route, template)}
    return ", ".join(sorted(methods | ({"HEAD"} if "GET" in methods else set())))


def _methods(route: BaseRoute, template: str) -> Iterable[str]:
    return route.methods if isinstance(route, HTTPRoute) and route.path_format == template else ()


def _check_query(request: Request[Any, Any, Any]) -> None:
    """Refuses query parameters that the handler does not look at, and one that is given twice where one is taken."""
    query = request.scope["query_string"]
    if not query:
        return
    known = _query_of(request.route_handler)
    seen = set()
    for name, value in parse_qsl(query.decode("latin-1"), keep_blank_values=True):
        if name not in known:
            near = nearest(name, known)
            takes = f"it takes: {', '.join(sorted(known))}" if known else "this path takes none"
            raise InvalidInput(
                f"there is no query parameter {shown(name)} here",
                hint=f"did you mean {near}?" if near else takes,
                details={"parameter": name[:100]},
            )
        if name in seen and not known[name]:
            raise InvalidInput(
                f"the query parameter {shown(name)} is there twice", hint="give it once", details={"parameter": name}
            )
        if not value:
            raise InvalidInput(
                f"{name}: it has no value", hint="give one, or leave it out", details={"parameter": name}
            )
        seen.add(name)


@cache
def _query_of(handler: Any) -> dict[str, bool]:
    """Query parameters of a handler by name: whether there may be several."""
    return {
        field.kwarg_definition.name or name: is_several(field)
        for name, field in handler.parsed_fn_signature.parameters.items()
        if isinstance(field.kwarg_definition, QueryParameter)
    }


def is_several(field: FieldDefinition) -> bool:
    """Whether a parameter is a list."""
    return field.is_non_string_sequence or any(inner.is_non_string_sequence for inner in field.inner_types)
