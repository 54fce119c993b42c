"""Every small change of a module that a test should notice.

Machines and rules are written as class bodies and tables, so what stands outside of functions is changed as well: fields,
defaults, entries, transitions, members of enumerations. Left alone is what no test can see or what another check looks after:
annotations, imports, docstrings, asserts, type variables, the ``__main__`` block. Of prose it is asked only that there is
some and that it names what it is about: a text becomes empty or loses a placeholder, its wording is free.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.Gt),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.Lt),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
}
OPPOSITE_CALLS = {"min": "max", "max": "min", "any": "all", "all": "any"}
REMOVABLE_ITEMS = ("keywords", "elts", "decorator_list")
REMOVABLE = (ast.Expr, ast.Assign, ast.AugAssign, ast.Raise)
SHOWN = (ast.expr, ast.keyword, ast.Return, ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Expr, ast.Raise)
LONGEST_SHOWN = 72
AROUND = 20
Enumerations = dict[str, list[str]]


@dataclass(frozen=True)
class Mutant:
    """A module with one change. ``key`` names the change without a line number, so that it outlives edits elsewhere."""

    file: str
    line: int
    key: str
    source: str


@dataclass(frozen=True)
class _Place:
    """Where a node hangs: a field of its parent, or an item of a list in that field."""

    parent: ast.AST
    field: str
    index: int | None

    def put(self, node: ast.AST | None) -> None:
        if self.index is None:
            setattr(self.parent, self.field, node)
        elif node is None:
            del getattr(self.parent, self.field)[self.index]
        else:
            getattr(self.parent, self.field)[self.index] = node

    def restore(self, node: ast.AST, *, removed: bool) -> None:
        if self.index is not None and removed:
            getattr(self.parent, self.field).insert(self.index, node)
        else:
            self.put(node)


def enumerations(sources: list[str]) -> Enumerations:
    """The members of the enumerations in ``sources``, in order; an alias that a machine gives to its states included."""
    found: Enumerations = {}
    trees = [ast.parse(source) for source in sources]
    classes = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    for node in classes:
        if any(isinstance(base, ast.Name) and base.id.endswith("Enum") for base in node.bases):
            assigned = [item.targets[0] for item in node.body if isinstance(item, ast.Assign)]
            found[node.name] = [target.id for target in assigned if isinstance(target, ast.Name)]
    return found


def mutants(file: str, source: str, known: Enumerations) -> Iterator[Mutant]:
    """The mutants of a module, in the order of its text; no two of them alike."""
    yield from _Maker(file, source, known).made()


class _Maker:
    def __init__(self, file: str, source: str, known: Enumerations) -> None:
        self.file = file
        self.tree = ast.parse(source)
        self.known = {**known, **_aliases(self.tree, known)}
        self.seen = {ast.unparse(self.tree)}
        self.keys: Counter[str] = Counter()

    def made(self) -> Iterator[Mutant]:
        yield from self._inside(self.tree, [], ())

    def _inside(self, node: ast.AST, above: list[ast.AST], scope: tuple[str, ...]) -> Iterator[Mutant]:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            scope = (*scope, node.name)
        for place, child in list(_children(node)):
            if _is_left_alone(child, place):
                continue
            for new in self._changes(child, place):
                yield from self._mutant(child, new, place, [*above, node], scope)
            if not isinstance(child, ast.JoinedStr):
                yield from self._inside(child, [*above, node], scope)
            else:
                for part in child.values:
                    if isinstance(part, ast.FormattedValue):
                        yield from self._inside(part, [*above, node, child], scope)

    def _mutant(
        self, old: ast.AST, new: ast.AST | None, place: _Place, above: list[ast.AST], scope: tuple[str, ...]
    ) -> Iterator[Mutant]:
        shown = _shown(old, above)
        before = ast.unparse(shown)
        place.put(new)
        try:
            source = ast.unparse(ast.fix_missing_locations(self.tree))
            after = ast.unparse(shown) if shown is not old else ("" if new is None else ast.unparse(new))
        finally:
            place.restore(old, removed=new is None)
        if source in self.seen:
            return
        self.seen.add(source)
        key = f"{'.'.join(scope) or 'module'}: {_difference(before, after)}"
        self.keys[key] += 1
        if self.keys[key] > 1:
            key += f" (no. {self.keys[key]})"
        line = next(n.lineno for n in [old, *reversed(above)] if isinstance(n, ast.stmt | ast.expr | ast.keyword))
        yield Mutant(self.file, line, key, source)

    def _changes(self, node: ast.AST, place: _Place) -> Iterator[ast.AST | None]:
        if place.field in ("test", "ifs"):
            yield ast.Constant(value=True)
            yield ast.Constant(value=False)
        if place.field in REMOVABLE_ITEMS and not isinstance(getattr(place.parent, "ctx", None), ast.Store):
            yield None
        match node:
            case ast.Constant():
                yield from _constants(node.value)
            case ast.JoinedStr():
                yield from _texts(node)
            case ast.Compare():
                yield from _comparisons(node)
            case ast.BoolOp():
                yield from _conditions(node)
            case ast.UnaryOp(op=ast.Not() | ast.USub()):
                yield node.operand
            case ast.BinOp():
                yield from _arithmetic(node)
            case ast.Call():
                yield from _calls(node)
            case ast.Dict():
                for n in range(len(node.keys)):
                    yield ast.Dict(_without(node.keys, n), _without(node.values, n))
            case ast.Slice():
                if node.lower is not None:
                    yield ast.Slice(None, node.upper, node.step)
                if node.upper is not None:
                    yield ast.Slice(node.lower, None, node.step)
            case ast.Attribute(value=ast.Name(id=owner), attr=member) if member in self.known.get(owner, ()):
                members = self.known[owner]
                yield ast.Attribute(node.value, members[(members.index(member) + 1) % len(members)], node.ctx)
            case ast.Return(value=ast.expr()):
                yield ast.Return(ast.Constant(value=None))
            case _ if isinstance(node, REMOVABLE) or (isinstance(node, ast.AnnAssign) and node.value is not None):
                yield ast.Pass()
        if isinstance(node, ast.AugAssign) and type(node.op) in ARITHMETIC:
            yield ast.AugAssign(node.target, ARITHMETIC[type(node.op)](), node.value)


def _constants(value: object) -> Iterator[ast.AST]:
    new: tuple[Any, ...] = ()
    if isinstance(value, bool):
        new = (not value,)
    elif isinstance(value, int | float):
        new = (value + 1, value - 1)
    elif isinstance(value, str):
        is_prose = " " in value.strip()
        new = ("",) if is_prose else (value + "XX",)
    elif value is None:
        new = (1,)
    yield from (ast.Constant(value=changed) for changed in new)


def _texts(node: ast.JoinedStr) -> Iterator[ast.AST]:
    yield ast.Constant(value="")
    for n, part in enumerate(node.values):
        if isinstance(part, ast.FormattedValue):
            yield ast.JoinedStr(_without(node.values, n))


def _comparisons(node: ast.Compare) -> Iterator[ast.AST]:
    for n, op in enumerate(node.ops):
        for other in COMPARISONS[type(op)]:
            yield ast.Compare(node.left, [*node.ops[:n], other(), *node.ops[n + 1 :]], node.comparators)


def _conditions(node: ast.BoolOp) -> Iterator[ast.AST]:
    yield ast.BoolOp(ast.Or() if isinstance(node.op, ast.And) else ast.And(), node.values)
    for n, value in enumerate(node.values):
        rest = _without(node.values, n)
        yield rest[0] if len(rest) == 1 else ast.BoolOp(node.op, rest)
        if not isinstance(value, ast.Compare | ast.UnaryOp | ast.Constant):
            negated = ast.UnaryOp(ast.Not(), value)
            yield ast.BoolOp(node.op, [*node.values[:n], negated, *node.values[n + 1 :]])


def _arithmetic(node: ast.BinOp) -> Iterator[ast.AST]:
    if isinstance(node.op, ast.BitOr):  # transitions that are joined
        yield node.left
        yield node.right
    elif type(node.op) in ARITHMETIC:
        yield ast.BinOp(node.left, ARITHMETIC[type(node.op)](), node.right)


def _calls(node: ast.Call) -> Iterator[ast.AST]:
    match node.func:
        case ast.Name(id="cast"):
            return
        case ast.Name(id=name) if name in OPPOSITE_CALLS:
            yield ast.Call(ast.Name(OPPOSITE_CALLS[name], ast.Load()), node.args, node.keywords)
            if len(node.args) > 1:
                yield from node.args
        case ast.Name() if len(node.args) == 1 and not node.keywords:
            yield node.args[0]
        case ast.Attribute(value=receiver) if not node.args and not node.keywords:
            yield receiver
        case ast.Attribute() if len(node.args) > 1:
            for n in range(len(node.args)):
                yield ast.Call(node.func, _without(node.args, n), node.keywords)


def _without(items: list[Any], n: int) -> list[Any]:
    return [*items[:n], *items[n + 1 :]]


def _children(node: ast.AST) -> Iterator[tuple[_Place, ast.AST]]:
    for field, value in ast.iter_fields(node):
        if isinstance(value, ast.AST):
            yield _Place(node, field, None), value
        elif isinstance(value, list):
            for index, item in enumerate(value):
                if isinstance(item, ast.AST):
                    yield _Place(node, field, index), item


def _is_left_alone(node: ast.AST, place: _Place) -> bool:
    if place.field in ("annotation", "returns", "bases", "format_spec"):
        return True
    match node:
        case ast.Import() | ast.ImportFrom() | ast.Assert():
            return True
        case ast.Expr(value=ast.Constant()):
            return True
        case ast.If(test=ast.Name(id="TYPE_CHECKING")) | ast.If(test=ast.Compare(left=ast.Name(id="__name__"))):
            return True
        case ast.Assign(value=ast.Call(func=ast.Name(id="TypeVar"))):
            return True
        case ast.Constant(value=str()) if isinstance(place.parent, ast.Call):  # the type in a cast
            return isinstance(place.parent.func, ast.Name) and place.parent.func.id == "cast"
        case ast.Constant(value=None) if isinstance(place.parent, ast.Compare | ast.Return):
            return True
        case _:
            return isinstance(node, ast.expr_context | ast.cmpop | ast.operator | ast.boolop | ast.unaryop)


def _aliases(tree: ast.Module, known: Enumerations) -> Enumerations:
    """``s = States.from_enum(RunState, ...)``: the members of ``s`` are those of ``RunState``."""
    found: Enumerations = {}
    for node in ast.walk(tree):
        match node:
            case ast.Assign(
                targets=[ast.Name(id=alias)],
                value=ast.Call(func=ast.Attribute(attr="from_enum"), args=[ast.Name(id=name)]),
            ) if name in known:
                found[alias] = known[name]
    return found


def _shown(node: ast.AST, above: list[ast.AST]) -> ast.AST:
    """The largest part around ``node`` that fits into a line."""
    best = node
    for outer in reversed(above):
        if not isinstance(outer, SHOWN) or len(ast.unparse(outer)) > LONGEST_SHOWN:
            break
        best = outer
    return best


def _difference(before: str, after: str) -> str:
    """Both on a line; of long texts what differs, with a little of what is around it."""
    before, after = (" ".join(text.split()) for text in (before, after))
    if max(len(before), len(after)) > LONGEST_SHOWN:
        start = max(0, _alike(before, after) - AROUND)
        end = max(0, _alike(before[:start:-1], after[:start:-1]) - AROUND)
        dots = ["..." if cut else "" for cut in (start, end)]
        before, after = (text[start : len(text) - end].join(dots) for text in (before, after))
    return f"{_short(before)} -> {_short(after) or 'nothing'}"


def _alike(one: str, other: str) -> int:
    """How many characters they have in common at their start."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((n for n, (a, b) in pairs if a != b), min(len(one), len(other)))


def _short(text: str) -> str:
    return text if len(text) <= 2 * LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]} ... {text[-LONGEST_SHOWN:]}"
