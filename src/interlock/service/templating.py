"""Templates of tasks (the first seed's workflow templates): a task with ``${names}`` in its texts, and what to put there."""

from __future__ import annotations

from collections.abc import Mapping
from string import Template
from typing import Any

from interlock.domain.errors import InvalidInput, NotFound
from interlock.ports.store import Tx
from interlock.service.context import Context


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
