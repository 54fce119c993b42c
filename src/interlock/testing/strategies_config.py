"""Hypothesis strategies for configuration files: sound ones with the settings that they stand for, and faulty ones."""

from __future__ import annotations

from typing import Any

import msgspec
import yaml
from hypothesis import strategies as st

from interlock.domain.settings import Agent, Role, Settings
from interlock.testing import strategies

_TIMES = {"timeout": "timeout_ms", "stallTimeout": "stall_ms", "deadline": "deadline_ms", "stopGrace": "stop_grace_ms"}


class ConfigDocument(msgspec.Struct, frozen=True, kw_only=True):
    """The text of an interlock.yaml and the settings that it loads to."""

    text: str
    settings: Settings


class FaultyConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The text of an interlock.yaml that is refused; the refusal speaks of ``word``."""

    text: str
    word: str


def document_of(configuration: Settings) -> dict[str, Any]:
    """The configuration file of these settings, as the mapping that it holds."""
    limits, retry, budgets, leases = (
        configuration.limits,
        configuration.retry,
        configuration.budgets,
        configuration.leases,
    )
    dispatch = {
        "enabled": configuration.enabled,
        "mode": str(configuration.mode),
        "poll": {"intervalMs": configuration.poll_ms},
        "concurrency": {
            "global": limits.total,
            "perProject": limits.per_project,
            "perTracker": limits.per_tracker,
            "perRole": limits.per_role,
            "perTag": limits.per_tag,
            "perAgent": limits.per_agent,
        },
        "retry": {
            "maxRetries": retry.max_retries,
            "baseDelayMs": retry.base_delay_ms,
            "maxDelayMs": retry.max_delay_ms,
        },
        "push": {"defaultRole": configuration.default_role},
        "defaultAgent": configuration.default_agent,
        **{key: _span(getattr(configuration, name)) for key, name in _TIMES.items()},
        "claimTimeout": _span(leases.claim_timeout_ms),
        "onTimeout": str(configuration.on_timeout),
        "onNeedFailed": str(configuration.on_need_failed),
        "onNeverClaimed": str(configuration.on_never_claimed),
        "budgets": {
            "maxLosts": budgets.max_losts,
            "maxDefers": budgets.max_defers,
            "maxOffers": budgets.max_offers,
            "defaultDefer": _span(budgets.default_defer_ms),
        },
        "leases": {
            "local": _span(leases.local_ms),
            "remote": _span(leases.remote_ms),
            "grace": _span(leases.grace_ms),
        },
        "minFreeMemory": f"{configuration.min_free_memory_bytes}b",
    }
    document = {
        "version": 1,
        "dispatch": dispatch,
        "agents": {name: _agent(agent) for name, agent in configuration.agents.items()},
        "roles": {name: _role(role) for name, role in configuration.roles.items()},
        "templates": configuration.templates,
        "server": {
            "enabled": configuration.server.enabled,
            "listen": configuration.server.listen,
            "hosts": list(configuration.server.hosts),
            "requireToken": configuration.server.require_token,
        },
    }
    found = _without_nothing(document)
    assert isinstance(found, dict)
    return found


def _span(ms: int | None) -> str | None:
    return None if ms is None else f"{ms}ms"


def _agent(agent: Agent) -> dict[str, Any]:
    return {
        "command": agent.command if isinstance(agent.command, str) else list(agent.command),
        "env": agent.env,
        "cwd": agent.cwd,
        "maxConcurrent": agent.max_concurrent,
        "timeout": _span(agent.timeout_ms),
        "stallTimeout": _span(agent.stall_ms),
        "stopGrace": _span(agent.grace_ms),
    }


def _role(role: Role) -> dict[str, Any]:
    return {"agent": role.agent, "prompt": role.prompt}


def _without_nothing(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nothing(inner) for key, inner in value.items() if inner is not None}
    return value


def yaml_text(document: Any) -> str:
    """A document as YAML; texts that YAML could take for something else are quoted."""
    return yaml.safe_dump(document, sort_keys=False, allow_unicode=False, width=1000)


@st.composite
def configs(draw: st.DrawFn) -> ConfigDocument:
    """Sound configuration files, with the settings that they load to."""
    configuration = draw(strategies.settings())
    return ConfigDocument(text=yaml_text(document_of(configuration)), settings=configuration)


@st.composite
def faulty_configs(draw: st.DrawFn) -> FaultyConfig:
    """Configuration files with one fault in them: an unknown key, a wrong kind of value, a number out of its range, a name that
    nothing stands behind, YAML that is none.
    """
    document = document_of(draw(strategies.settings()))
    break_it = draw(st.sampled_from(_FAULTS))
    word = break_it(draw, document)
    text = yaml_text(document)
    if word == "concurrency:":
        # The same key twice: YAML itself would let the second one win.
        return FaultyConfig(
            text=text.replace("  concurrency:", "  concurrency: {}\n  concurrency:", 1), word="concurrency"
        )
    if word == "{":
        return FaultyConfig(text=f"{text}{{\n", word="interlock.yaml")
    return FaultyConfig(text=text, word=word)


def _unknown_key(draw: st.DrawFn, document: dict[str, Any]) -> str:
    place, key = draw(
        st.sampled_from(
            [
                ((), "dispatches"),
                (("dispatch",), "defaultAgnet"),
                (("dispatch", "concurrency"), "perProjekt"),
                (("dispatch", "retry"), "maxRetry"),
                (("dispatch", "leases"), "Local"),
            ]
        )
    )
    _at(document, place)[key] = 1
    return key


Faults = list[tuple[tuple[str, ...], str, list[Any]]]
_WRONG_KINDS: Faults = [
    (("dispatch",), "enabled", ["maybe", 1, []]),
    (("dispatch",), "mode", ["sideways", 3]),
    (("dispatch", "concurrency"), "global", ["many", 1.5, {}, [1], True]),
    (("dispatch", "concurrency"), "perTag", [3, ["gpu"], "gpu"]),
    (("dispatch", "retry"), "maxRetries", ["x", {}]),
    (("dispatch",), "timeout", [90, "soon", "90", "1m1h"]),
    (("dispatch",), "minFreeMemory", ["2 apples"]),
]
_OUT_OF_RANGE: Faults = [
    (("dispatch", "concurrency"), "global", [-1, 2**31]),
    (("dispatch", "poll"), "intervalMs", [9, 0]),
    (("dispatch", "budgets"), "maxLosts", [0]),
    (("dispatch", "leases"), "remote", ["999ms"]),
    (("dispatch",), "timeout", ["0ms", "4000d"]),
]


def _wrong_kind(draw: st.DrawFn, document: dict[str, Any]) -> str:
    return _one_of(_WRONG_KINDS, draw, document)


def _out_of_range(draw: st.DrawFn, document: dict[str, Any]) -> str:
    return _one_of(_OUT_OF_RANGE, draw, document)


def _one_of(faults: Faults, draw: st.DrawFn, document: dict[str, Any]) -> str:
    place, key, values = draw(st.sampled_from(faults))
    _at(document, place)[key] = draw(st.sampled_from(values))
    return key


def _no_such_agent(draw: st.DrawFn, document: dict[str, Any]) -> str:
    if draw(st.booleans()):
        document["dispatch"]["defaultAgent"] = "nobody there"
        return "nobody there"
    document["roles"]["a new role"] = {"agent": "nobody there"}
    return "nobody there"


def _no_command(draw: st.DrawFn, document: dict[str, Any]) -> str:
    document["agents"]["a new agent"] = draw(st.sampled_from([{}, {"maxConcurrent": 1}]))
    return "command"


def _delays_crossed(draw: st.DrawFn, document: dict[str, Any]) -> str:
    longest = draw(st.integers(0, 1000))
    document["dispatch"]["retry"] |= {"baseDelayMs": longest + draw(st.integers(1, 1000)), "maxDelayMs": longest}
    return "baseDelayMs"


def _twice(draw: st.DrawFn, document: dict[str, Any]) -> str:  # noqa: ARG001 - the shape of every fault
    return "concurrency:"


def _no_yaml(draw: st.DrawFn, document: dict[str, Any]) -> str:  # noqa: ARG001 - the same
    return "{"


_FAULTS = (
    _unknown_key,
    _wrong_kind,
    _out_of_range,
    _no_such_agent,
    _no_command,
    _delays_crossed,
    _twice,
    _no_yaml,
)


def _at(document: dict[str, Any], place: tuple[str, ...]) -> dict[str, Any]:
    for key in place:
        document = document[key]
    return document
