"""Templates of tasks (the first seed's workflow templates): a task with ``${names}`` in its texts, and what to put there.

The fields of a task are called as in the API (``workflow_type``, ``timeout_seconds``), wherever a template is written.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from string import Template
from typing import Any

import msgspec

from interlock.domain.errors import Conflict, InvalidInput, NotFound, TooLarge
from interlock.domain.template import TaskTemplate
from interlock.ports.store import Tx
from interlock.service.context import Context
from interlock.sources.faults import nearest, shown

FIELDS = (
    "title",
    "id",
    "content",
    "context",
    "priority",
    "tags",
    "project",
    "tracker",
    "role",
    "workflow_type",
    "agent",
    "needs",
    "timeout_seconds",
    "stall_seconds",
    "not_before",
    "unique",
    "metadata",
)
"""What a template may say of its task."""
MOST_BYTES = 1024 * 1024
_MOST_CHARACTERS = 100


def check(name: str, task: Mapping[str, Any]) -> None:
    """Raises InvalidInput for what is no template, as far as can be told before it is filled; TooLarge."""
    if not 0 < len(name) <= _MOST_CHARACTERS or name != name.strip() or not name.isprintable() or "/" in name:
        raise InvalidInput(
            f"{shown(name)} is no name for a template",
            hint=f"1 to {_MOST_CHARACTERS} printable characters, no / among them",
        )
    for field in task:
        if field not in FIELDS:
            near = nearest(field, FIELDS)
            hint = f"did you mean {near}?" if near else f"the fields of a task: {', '.join(FIELDS)}"
            raise InvalidInput(f"template '{name}': a task has no field {shown(field)}", hint=hint)
    if not isinstance(task.get("title"), str) or not task["title"].strip():
        raise InvalidInput(f"template '{name}' has no title", hint="title: what is to be done, in a line")
    for place, text in _texts("", task):
        if not Template(text).is_valid():
            raise InvalidInput(
                f"template '{name}', {place}: there is a $ that begins no parameter",
                hint="write ${name}, or $$ for a dollar sign",
            )
    if len(msgspec.json.encode(task)) > MOST_BYTES:
        raise TooLarge(f"template '{name}' has more than {MOST_BYTES} bytes", hint="put what is long into a file")


def _texts(place: str, value: Any) -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        yield place, value
    elif isinstance(value, Mapping):
        for key, each in value.items():
            yield from _texts(f"{place}.{key}" if place else key, each)
    elif isinstance(value, list | tuple):
        for at, each in enumerate(value):
            yield from _texts(f"{place}[{at}]", each)


def fill(name: str, task: Mapping[str, Any], params: Mapping[str, object]) -> dict[str, Any]:
    """The task of template ``name`` with ``params`` in it. Raises InvalidInput for one that is missing, or not asked for."""
    used: set[str] = set()
    filled = {key: _filled(name, key, value, params, used) for key, value in task.items()}
    if unused := sorted(params.keys() - used):
        raise InvalidInput(
            f"template '{name}' has no place for: {', '.join(unused)}",
            hint=f"its parameters: {', '.join(sorted(parameters(task))) or 'none'}",
        )
    return filled


def parameters(task: Any) -> set[str]:
    """Names that a template asks for."""
    if isinstance(task, str):
        return set(Template(task).get_identifiers())
    if isinstance(task, Mapping):
        return set().union(*(parameters(value) for value in task.values())) if task else set()
    if isinstance(task, list | tuple):
        return set().union(*(parameters(value) for value in task)) if task else set()
    return set()


def _filled(name: str, place: str, value: Any, params: Mapping[str, object], used: set[str]) -> Any:
    if isinstance(value, str):
        names = Template(value).get_identifiers()
        used.update(names)
        if missing := sorted(set(names) - params.keys()):
            raise InvalidInput(
                f"template '{name}' needs {', '.join(missing)} (in {place})",
                hint=f"give params: {{{', '.join(repr(each) + ': ...' for each in missing)}}}",
            )
        try:
            return Template(value).substitute({each: str(params[each]) for each in names})
        except ValueError as error:
            raise InvalidInput(f"template '{name}', {place}: {error}", hint="write $$ for a dollar sign") from error
    if isinstance(value, Mapping):
        return {key: _filled(name, f"{place}.{key}", each, params, used) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_filled(name, f"{place}[{at}]", each, params, used) for at, each in enumerate(value)]
    return value


def template_of(tx: Tx, configured: Mapping[str, Mapping[str, Any]], name: str) -> Mapping[str, Any]:
    """A template by name: one of the configuration goes before one of the database. Raises NotFound."""
    if name in configured:
        return configured[name]
    stored = tx.templates()
    if name not in stored:
        known = ", ".join(sorted({*configured, *stored})) or "none"
        raise NotFound(f"there is no template '{name}'", hint=f"templates: {known}")
    return stored[name]


def put_template(tx: Tx, ctx: Context, name: str, task: Mapping[str, Any]) -> None:
    """Add or change one."""
    tx.put_template(name, dict(task), ctx.now_ms)


def delete_template(tx: Tx, name: str) -> None:
    """Remove one. Raises NotFound."""
    if not tx.delete_template(name):
        raise NotFound(
            f"there is no template '{name}' in the database", hint="those of interlock.yaml are removed there"
        )


def known(tx: Tx, ctx: Context) -> list[TaskTemplate]:
    """All there are, by name."""
    stored = [_found(name, task, configured=False) for name, task in tx.templates().items()]
    configured = [_found(name, task, configured=True) for name, task in ctx.settings.templates.items()]
    return sorted({each.name: each for each in [*stored, *configured]}.values(), key=lambda each: each.name)


def find(tx: Tx, ctx: Context, name: str) -> TaskTemplate:
    """One of them. Raises NotFound."""
    task = template_of(tx, ctx.settings.templates, name)
    return _found(name, task, configured=name in ctx.settings.templates)


def store_template(tx: Tx, ctx: Context, name: str, task: Mapping[str, Any]) -> TaskTemplate:
    """Add or change one, after a look at it. Raises InvalidInput; Conflict where it would have no effect."""
    check(name, task)
    if name in ctx.settings.templates:
        raise Conflict(
            f"the template '{name}' is in interlock.yaml, which goes before the database",
            hint="change it there, or take another name",
        )
    put_template(tx, ctx, name, task)
    return _found(name, task, configured=False)


def _found(name: str, task: Mapping[str, Any], *, configured: bool) -> TaskTemplate:
    return TaskTemplate(name=name, task=dict(task), parameters=sorted(parameters(task)), configured=configured)
