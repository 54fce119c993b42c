"""``interlock.yaml``: its keys, loading, the reference and the example that ``interlock init`` writes.

:data:`KEYS` is the one table of what may stand in the file. A key without ``target`` is known and not
active yet: it is checked and reported (:attr:`Config.inactive`), never silently taken.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from interlock.domain.errors import InterlockError, InvalidConfig
from interlock.domain.places import CONFIG_FILE
from interlock.domain.settings import Settings
from interlock.service.templating import check
from interlock.sources.durations import LONGEST_MS
from interlock.sources.faults import Faults, nearest, shown
from interlock.sources.keyed import Found, Holds, Key, read_keys
from interlock.sources.placed import ANY, Node
from interlock.sources.text import decode, read_bytes, source_name
from interlock.sources.yaml_reader import read_yaml

NAMED = frozenset({"agents", "roles"})
_LATER_RUNTIME = "use runtime: command with the program's own command line"


class InactiveKey(msgspec.Struct, frozen=True, kw_only=True):
    """A key of the file that nothing follows yet. ``place`` is ``interlock.yaml:12``."""

    place: str
    key: str
    why: str


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """What a configuration file says. ``path`` is None when there is no file and all is default."""

    settings: Settings = Settings()
    inactive: tuple[InactiveKey, ...] = ()
    path: Path | None = None


class ReferenceRow(msgspec.Struct, frozen=True, kw_only=True):
    """A line of the docs' table of keys. ``default`` is as written in the file, empty for none."""

    key: str
    kind: str
    default: str
    meaning: str
    active: bool


def _k(path: str, holds: Holds, target: str | None, meaning: str, **more: Any) -> Key:
    return Key(path=path, holds=holds, target=target, meaning=meaning, **more)


def _ms(path: str, target: str | None, meaning: str, **more: Any) -> Key:
    return _k(path, Holds.MS, target, meaning, high=LONGEST_MS, **more)


def _of_the_seed() -> Iterable[Key]:
    """Keys below ``dispatch:`` in the order of the second seed."""
    yield _k("enabled", Holds.BOOL, "enabled", "false: the daemon serves and records, and dispatches nothing")
    yield _k(
        "mode",
        Holds.CHOICE,
        "mode",
        "push: start agents; pull: offer runs to agents that come for them",
        choices=("push", "pull"),
        later={"hybrid": "use push or pull"},
    )
    yield _ms("poll.intervalMs", "poll_ms", "safety net: how often the queue is looked at unasked", low=10)
    yield _k("reconcile.enabled", Holds.BOOL, None, "compare runs with the source of their tasks", default="true")
    yield _ms("reconcile.intervalMs", None, "how often", low=1000, default="60000")
    at_once = "runs active at once"
    yield _k("concurrency.global", Holds.INT, "limits.total", f"{at_once}, all together; 0: none")
    for each in ("project", "tracker", "role", "tag", "agent"):
        yield _k(
            f"concurrency.per{each.capitalize()}",
            Holds.LIMITS,
            f"limits.per_{each}",
            f"{at_once} with the same {each}",
            example=f"{{ some-{each}: 2 }}",
        )
    yield _k("retry.maxRetries", Holds.INT, "retry.max_retries", "tries after the first one failed", high=1_000_000)
    yield _ms("retry.baseDelayMs", "retry.base_delay_ms", "wait before the first retry; doubles each time")
    yield _ms("retry.maxDelayMs", "retry.max_delay_ms", "longest wait before a retry")
    yield _k(
        "retry.workspaceStrategy",
        Holds.CHOICE,
        None,
        "what a retry works in",
        choices=("reuse", "fresh", "branch"),
        default="reuse",
    )
    yield _k("retry.preserveOnExhaustion", Holds.BOOL, None, "keep the workspace of a failed run", default="true")
    yield _ms("retry.cleanupDelayMs", None, "how long a workspace is kept", default="300000")
    yield _k("eligibility.tags", Holds.NAMES, None, "only tasks with one of these tags")
    yield _k("eligibility.excludeTags", Holds.NAMES, None, "no task with one of these tags")
    yield _k("eligibility.minPriority", Holds.INT, None, "no task below", low=-1_000_000, high=1_000_000)
    yield _k("eligibility.minScore", Holds.DECIMAL, None, "no task below", high=1, default="0.3")
    yield _k("eligibility.requireFields", Holds.NAMES, None, "only tasks that have these fields")
    triage = "eligibility.agentTriage"
    yield _k(f"{triage}.enabled", Holds.BOOL, None, "ask an agent about tasks in doubt", default="false")
    yield _k(f"{triage}.role", Holds.NAME, None, "its role")
    yield _k(f"{triage}.minScoreForTriage", Holds.DECIMAL, None, "in doubt from", high=1, default="0.3")
    yield _k(f"{triage}.maxScoreForTriage", Holds.DECIMAL, None, "in doubt to", high=1, default="0.7")
    yield _k(f"{triage}.maxTriagePerCycle", Holds.INT, None, "questions per cycle", default="3")
    yield _k("prompt.stages", Holds.NAMES, None, "the parts of a prompt, in order")
    yield _k("push.defaultRole", Holds.NAME, "default_role", "role of tasks without one", example="worker")
    yield _k("pull.poolSize", Holds.INT, None, "workers of its own", default="3")
    yield _k("pull.workerRole", Holds.NAME, None, "their role")
    yield _ms("pull.idleTimeoutMs", None, "an idle worker ends after", default="300000")
    yield _k("pull.workerLoop", Holds.BOOL, None, "a worker takes task after task", default="true")
    yield _k(
        "hybrid.pushPriorityThreshold",
        Holds.INT,
        None,
        "push from this priority on",
        low=-1_000_000,
        high=1_000_000,
        default="3",
    )


def _of_ours() -> Iterable[Key]:
    """Further keys below ``dispatch:``."""
    duration = Holds.DURATION
    yield _k("defaultAgent", Holds.NAME, "default_agent", "agent of runs that name none", example="worker")
    yield _k("timeout", duration, "timeout_ms", "longest an attempt may take", low=1)
    yield _k("stallTimeout", duration, "stall_ms", "longest without output and CPU time", low=1, example="10m")
    yield _k("deadline", duration, "deadline_ms", "longest a run may take, all attempts", low=1, example="8h")
    yield _k("stopGrace", duration, "stop_grace_ms", "between TERM and KILL")
    yield _k("claimTimeout", duration, "leases.claim_timeout_ms", "how long an offer waits", low=1)
    yield _k(
        "onTimeout",
        Holds.CHOICE,
        "on_timeout",
        "end: timed_out; retry: counts a failure",
        choices=("end", "retry"),
    )
    yield _k(
        "onNeedFailed",
        Holds.CHOICE,
        "on_need_failed",
        "a run whose need ended badly: fail, skip (cancelled) or run",
        choices=("fail", "skip", "run"),
    )
    yield _k(
        "onNeverClaimed",
        Holds.CHOICE,
        "on_never_claimed",
        "an offer nobody took: withdraw (back to the queue) or fail",
        choices=("withdraw", "fail"),
    )
    yield _k(
        "budgets.maxLosts",
        Holds.INT,
        "budgets.max_losts",
        "losses in a row that are tried again; one more fails it",
        low=1,
    )
    yield _k("budgets.maxDefers", Holds.INT, "budgets.max_defers", "deferrals that are waited for; one more fails it")
    yield _k(
        "budgets.maxOffers",
        Holds.INT,
        "budgets.max_offers",
        "times that an unclaimed offer is made again before onNeverClaimed",
        low=1,
    )
    yield _k("budgets.defaultDefer", duration, "budgets.default_defer_ms", "wait of a deferral without a time")
    yield _k(
        "leases.local",
        duration,
        "leases.local_ms",
        "lease of a local claim: only paces its renewal",
        low=1000,
    )
    yield _k("leases.remote", duration, "leases.remote_ms", "a remote claim without heartbeat", low=1000)
    yield _k("leases.grace", duration, "leases.grace_ms", "added before a claim counts as lapsed")
    yield _k("minFreeMemory", Holds.SIZE, "min_free_memory_bytes", "start nothing with less free; 0: off")


def _agents_and_roles() -> Iterable[Key]:
    agent, role = f"agents.{ANY}", f"roles.{ANY}"
    yield _k(f"{agent}.command", Holds.COMMAND, "command", "what does the work", short=True)
    yield _k(
        f"{agent}.runtime",
        Holds.CHOICE,
        "runtime",
        "how it is run",
        choices=("command",),
        later=dict.fromkeys(("acp", "codex", "claude"), _LATER_RUNTIME)
        | {"function": "a function is given in Python: interlock.open(..., agents=...)"},
        default="command",
    )
    yield _k(f"{agent}.env", Holds.ENV, "env", "variables beside the daemon's own")
    yield _k(f"{agent}.cwd", Holds.TEXT, "cwd", "folder it works in")
    yield _k(f"{agent}.maxConcurrent", Holds.INT, "max_concurrent", "runs of it at once; 0: none")
    yield _k(f"{agent}.timeout", Holds.DURATION, "timeout_ms", "as dispatch.timeout", low=1)
    yield _k(f"{agent}.stallTimeout", Holds.DURATION, "stall_ms", "as dispatch.stallTimeout", low=1)
    yield _k(f"{agent}.stopGrace", Holds.DURATION, "grace_ms", "as dispatch.stopGrace")
    yield _k(f"{role}.agent", Holds.NAME, "agent", "agent that does its work", short=True)
    yield _k(f"{role}.prompt", Holds.TEXT, "prompt", "file that is added to its prompts")
    yield _k(f"{role}.workspace", Holds.ANYTHING, None, "kind of workspace")


KEYS: tuple[Key, ...] = (
    Key(path="version", holds=Holds.INT, meaning="form of this file", low=1, high=1, default="1", target=""),
    *(msgspec.structs.replace(key, path=f"dispatch.{key.path}") for key in (*_of_the_seed(), *_of_ours())),
    *_agents_and_roles(),
    _k(
        f"templates.{ANY}",
        Holds.TASK,
        "templates",
        "a task with `${name}` in its texts; a submit names it, and says what goes there",
        default="",
    ),
    Key(path="store", holds=Holds.ANYTHING, meaning="where runs are kept"),
    _k("server.enabled", Holds.BOOL, "server.enabled", "false: `interlock up` serves no HTTP"),
    _k(
        "server.listen", Holds.TEXT, "server.listen", "HOST:PORT of the HTTP interface; beyond loopback it wants tokens"
    ),
    _k("server.hosts", Holds.NAMES, "server.hosts", "further names that a loopback server goes by"),
    _k("server.requireToken", Holds.BOOL, "server.require_token", "true: a token is wanted on loopback as well"),
)


def load_config(path: Path) -> Config:
    """The configuration of a file.

    Raises NotFound, TooLarge, or InvalidConfig whose message has a line ``FILE:LINE: key: problem`` for each
    fault.
    """
    data = read_bytes(str(path), error=InvalidConfig)
    return msgspec.structs.replace(parse_config(data, source=source_name(str(path))), path=path)


def parse_config(data: bytes, *, source: str = CONFIG_FILE) -> Config:
    """As :func:`load_config`, from bytes."""
    faults = Faults(source, InvalidConfig)
    raw = read_yaml(decode(data, faults), faults)
    found = read_keys(Node(raw, faults), KEYS) if raw is not None else []
    values: dict[str, Any] = {"agents": {}, "roles": {}, "templates": {}}
    for each in found:
        if each.key is None:
            values[each.path[0]][each.path[1]] = {"name": each.path[1]}
        elif each.path[0] == "templates":
            values["templates"][each.path[1]] = each.value or {}
        elif each.key.target and each.value is not None:
            within = values[each.path[0]][each.path[1]] if each.path[0] in NAMED else values
            *groups, attribute = each.key.target.split(".")
            for group in groups:
                within = within.setdefault(group, {})
            within[attribute] = each.value
    if not faults.count:
        _check(found, values)
    faults.check()
    settings: Settings = msgspec.convert(values, Settings)
    _check_settings(found, settings)
    faults.check()
    inactive = [
        InactiveKey(place=f"{faults.source}:{leaf.line}", key=leaf.path, why=each.key.why)
        for each in found
        if each.key is not None and each.key.target is None
        for leaf in _leaves(each.node)
    ]
    return Config(settings=settings, inactive=tuple(inactive))


def _check(found: list[Found], values: dict[str, Any]) -> None:
    """Names that are used are there, and every agent can be run."""
    agents = values["agents"]
    for each in found:
        target = each.key.target if each.key else None
        if target == "templates":
            try:
                check(each.path[1], each.value)
            except InterlockError as error:
                each.node.fault(error.message, error.hint)
        elif each.key is None and each.path[0] == "agents" and "command" not in agents[each.path[1]]:
            each.node.fault("has no command", f"add `command:`, or write `{each.path[1]}: the command`")
        elif target in {"agent", "default_agent"} and each.value not in agents:
            near = nearest(each.value, agents)
            hint = f"did you mean {near}?" if near else f"add `{each.value}:` below `agents:`"
            each.node.fault(f"no agent is named {shown(each.value)}", hint)


def _check_settings(found: list[Found], settings: Settings) -> None:
    """Values that must fit each other, defaults taken in."""
    base, longest = settings.retry.base_delay_ms, settings.retry.max_delay_ms
    if base > longest:
        delays = {"retry.base_delay_ms", "retry.max_delay_ms"}
        said = next(each for each in found if each.key and each.key.target in delays)
        problem = f"baseDelayMs ({base}) is more than maxDelayMs ({longest})"
        said.node.fault(problem, "raise maxDelayMs or lower baseDelayMs")


def _leaves(node: Node) -> Iterable[Node]:
    """What is said below a key, one by one: all of it is inactive."""
    entries = [child for _, child in node.entries()] if node.is_mapping else []
    if not entries:
        yield node
    for child in entries:
        yield from _leaves(child)


def _default(key: Key) -> str:
    """The default of a key, as it would be written."""
    if key.default is not None or not key.target or key.parts[0] in NAMED:
        return key.default or ""
    value: Any = Settings()
    for attribute in key.target.split("."):
        value = getattr(value, attribute)
    return key.written(value)


def reference_rows() -> list[ReferenceRow]:
    """Every key there is, for the docs."""
    return [
        ReferenceRow(
            key=key.path,
            kind=key.kind,
            default=_default(key),
            meaning=key.meaning,
            active=key.target is not None,
        )
        for key in KEYS
    ]


_EXAMPLE_HEAD = """\
# Interlock. All that stands here is the default; what is commented out is off.
# `interlock config check` reads this file and names every fault with its line.
version: 1

"""
_EXAMPLE_TAIL = """
# An agent is a command. The prompt comes on its standard input; exit status 0 means done.
# A run's agent is its own, else its route's, else its role's, else dispatch.defaultAgent.
agents:
  # worker:
  #   command: claude -p --permission-mode acceptEdits
  #   env: { LOG_LEVEL: info }
  #   maxConcurrent: 4
  #   timeout: 30m

# A role picks an agent and adds a file to the prompt.
roles:
  # reviewer:
  #   agent: worker
  #   prompt: prompts/reviewer.md

# A template is a task with ${names} in its texts: {"template": "review", "params": {"branch": "main"}}.
templates:
  # review:
  #   title: Review ${branch}
  #   workflow_type: review
"""


def example_config() -> str:
    """The text of a commented interlock.yaml that loads to the defaults."""
    lines = ["dispatch:"]
    section: tuple[str, ...] = ()
    for key in KEYS:
        if key.parts[0] != "dispatch" or key.target is None:
            continue
        *above, name = key.parts[1:]
        if above and tuple(above) != section:
            lines.append(f"  {'.'.join(above)}:")
        section = tuple(above)
        indent = "    " if above else "  "
        default = _default(key)
        said = f"{indent}{name}: {default}" if default else f"{indent}# {name}: {key.example}"
        lines.append(f"{said:<38} # {key.meaning}")
    return _EXAMPLE_HEAD + "\n".join(lines) + "\n" + _EXAMPLE_TAIL
