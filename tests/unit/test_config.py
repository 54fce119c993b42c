from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from interlock.config import KEYS, Config, example_config, load_config, parse_config, reference_rows
from interlock.domain.errors import InvalidConfig, NotFound
from interlock.domain.settings import (
    Agent,
    Budgets,
    Leases,
    Limits,
    Mode,
    OnNeedFailed,
    OnNeverClaimed,
    OnTimeout,
    Retry,
    Role,
    Settings,
)

FIXTURES = Path(__file__).parents[2] / "fixtures" / "config"


def faults(text: str) -> list[str]:
    with pytest.raises(InvalidConfig) as caught:
        parse_config(text.encode())
    assert caught.value.hint
    return caught.value.message.split("\n")


def test_the_example_of_the_seed_loads_unchanged() -> None:
    config = load_config(FIXTURES / "seed.yaml")
    assert config.settings == Settings(
        limits=Limits(
            total=10,
            per_project={"backend": 5},
            per_tracker={"linear": 8},
            per_role={"worker": 8},
            per_tag={"gpu": 1},
        ),
        default_role="worker",
    )
    inactive = {each.key: each.place for each in config.inactive}
    assert inactive["dispatch.eligibility.minScore"] == f"{FIXTURES / 'seed.yaml'}:32"
    assert set(inactive) == {
        *(f"dispatch.reconcile.{key}" for key in ("enabled", "intervalMs")),
        *(f"dispatch.retry.{key}" for key in ("workspaceStrategy", "preserveOnExhaustion", "cleanupDelayMs")),
        *(f"dispatch.eligibility.{key}" for key in ("tags", "excludeTags", "minPriority", "minScore", "requireFields")),
        *(f"dispatch.eligibility.agentTriage.{key}" for key in ("enabled", "role")),
        *(f"dispatch.eligibility.agentTriage.{key}ScoreForTriage" for key in ("min", "max")),
        "dispatch.prompt.stages",
        *(f"dispatch.pull.{key}" for key in ("poolSize", "workerRole", "idleTimeoutMs", "workerLoop")),
        "dispatch.hybrid.pushPriorityThreshold",
    }


def test_every_setting_has_its_key() -> None:
    config = parse_config(
        b"""
version: 1
dispatch:
  enabled: false
  mode: pull
  poll: { intervalMs: 100 }
  concurrency:
    global: 0
    perProject: { a: 0 }
    perTracker: { b: 1 }
    perRole: { c: 2 }
    perTag: { 2024: 3, no: 1 }
    perAgent: { d: 4 }
  retry: { maxRetries: 0, baseDelayMs: 0, maxDelayMs: 5 }
  push: { defaultRole: r }
  defaultAgent: short
  timeout: 1h30m
  stallTimeout: 10m
  deadline: 1d
  stopGrace: 0s
  claimTimeout: 30s
  onTimeout: retry
  onNeedFailed: skip
  onNeverClaimed: fail
  budgets: { maxLosts: 1, maxDefers: 2, maxOffers: 4, defaultDefer: 5s }
  leases: { local: 1m, remote: 2m, grace: 1s }
  minFreeMemory: 2GiB
agents:
  short: cat
  long:
    command: [prog, "-x", 007]
    runtime: command
    env: { DEBUG: yes, PORT: 0080, EMPTY: "" }
    cwd: /tmp
    maxConcurrent: 2
    timeout: 5m
    stallTimeout: 30s
    stopGrace: 1s
roles:
  worker: long
  reviewer: { agent: short, prompt: p.md }
"""
    )
    assert config == Config(
        settings=Settings(
            enabled=False,
            mode=Mode.PULL,
            poll_ms=100,
            limits=Limits(
                total=0,
                per_project={"a": 0},
                per_tracker={"b": 1},
                per_role={"c": 2},
                per_tag={"2024": 3, "no": 1},
                per_agent={"d": 4},
            ),
            retry=Retry(max_retries=0, base_delay_ms=0, max_delay_ms=5),
            default_role="r",
            default_agent="short",
            timeout_ms=5_400_000,
            stall_ms=600_000,
            deadline_ms=86_400_000,
            stop_grace_ms=0,
            on_timeout=OnTimeout.RETRY,
            on_need_failed=OnNeedFailed.SKIP,
            on_never_claimed=OnNeverClaimed.FAIL,
            budgets=Budgets(max_losts=1, max_defers=2, max_offers=4, default_defer_ms=5000),
            leases=Leases(local_ms=60_000, remote_ms=120_000, grace_ms=1000, claim_timeout_ms=30_000),
            min_free_memory_bytes=2**31,
            agents={
                "short": Agent(name="short", command="cat"),
                "long": Agent(
                    name="long",
                    command=("prog", "-x", "007"),
                    env={"DEBUG": "yes", "PORT": "0080", "EMPTY": ""},
                    cwd="/tmp",
                    max_concurrent=2,
                    timeout_ms=300_000,
                    stall_ms=30_000,
                    grace_ms=1000,
                ),
            },
            roles={
                "worker": Role(name="worker", agent="long"),
                "reviewer": Role(name="reviewer", agent="short", prompt="p.md"),
            },
        )
    )


def test_every_setting_is_some_keys_target() -> None:
    def names(value: object, prefix: str = "") -> set[str]:
        result = set()
        for field in msgspec.structs.fields(type(value)):
            inner = getattr(value, field.name)
            inside = names(inner, f"{prefix}{field.name}.") if isinstance(inner, msgspec.Struct) else None
            result |= {f"{prefix}{field.name}"} if inside is None else inside
        return result

    targets = {key.target for key in KEYS if key.target and key.parts[0] in ("dispatch", "server", "templates")}
    assert targets == names(Settings()) - {"agents", "roles"}


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("dispatch:\n  modus: push\n", "interlock.yaml:2: dispatch.modus: is no known key"),
        ("dispach: {}\n", "interlock.yaml:1: dispach: is no known key"),
        ("dispatch: [a]\n", "interlock.yaml:1: dispatch: a mapping is expected"),
        ("dispatch:\n  mode: hybrid\n", "interlock.yaml:2: dispatch.mode: hybrid comes later"),
        ("dispatch:\n  mode: pusch\n", "interlock.yaml:2: dispatch.mode: one of push, pull is expected"),
        ("dispatch:\n  enabled: yes\n", "interlock.yaml:2: dispatch.enabled: true or false is expected"),
        ("dispatch:\n  timeout: 90\n", 'interlock.yaml:2: dispatch.timeout: "90": 90 has no unit'),
        ("dispatch:\n  timeout: 0s\n", "interlock.yaml:2: dispatch.timeout: "),
        ("dispatch:\n  minFreeMemory: 2048\n", "interlock.yaml:2: dispatch.minFreeMemory: "),
        ("dispatch:\n  poll:\n    intervalMs: 0\n", "interlock.yaml:3: dispatch.poll.intervalMs: 0 is out of range"),
        ("dispatch:\n  poll:\n    intervalMs: 15s\n", "interlock.yaml:3: dispatch.poll.intervalMs: a whole number"),
        ("dispatch:\n  concurrency:\n    global: -1\n", "interlock.yaml:3: dispatch.concurrency.global: -1 is out"),
        (
            "dispatch:\n  concurrency:\n    perTag:\n      gpu: x\n",
            "interlock.yaml:4: dispatch.concurrency.perTag.gpu: ",
        ),
        ("dispatch:\n  concurrency:\n    perTag: 3\n", "interlock.yaml:3: dispatch.concurrency.perTag: a mapping"),
        ("dispatch:\n  retry:\n    baseDelayMs: 400000\n", "interlock.yaml:3: dispatch.retry.baseDelayMs: baseDelayMs"),
        ("dispatch:\n  retry:\n    workspaceStrategy: re\n", "interlock.yaml:3: dispatch.retry.workspaceStrategy: "),
        ("dispatch:\n  eligibility:\n    minScore: 3\n", "interlock.yaml:3: dispatch.eligibility.minScore: 3 is out"),
        (
            "dispatch:\n  mode: push\n  mode: pull\n",
            "interlock.yaml:3: dispatch.mode: is there twice, on lines 2 and 3",
        ),
        ("dispatch:\n  defaultAgent: a\n", 'interlock.yaml:2: dispatch.defaultAgent: no agent is named "a"'),
        ("agents:\n  a: cat\nroles:\n  r:\n    agent: b\n", 'interlock.yaml:5: roles.r.agent: no agent is named "b"'),
        ("agents:\n  a:\n    cwd: /\n", "interlock.yaml:2: agents.a: has no command"),
        ("agents:\n  a:\n", "interlock.yaml:2: agents.a: has no command"),
        ("agents:\n  a: []\n", "interlock.yaml:2: agents.a: a command is expected"),
        ("agents:\n  a:\n    command: [' ']\n", "interlock.yaml:3: agents.a.command: its first member is empty"),
        ("agents:\n  a:\n    command: [[x]]\n", "interlock.yaml:3: agents.a.command: an argument is no text"),
        ("agents:\n  a:\n    comand: x\n    command: x\n", "interlock.yaml:3: agents.a.comand: is no known key"),
        (
            "agents:\n  a:\n    command: x\n    runtime: codex\n",
            "interlock.yaml:4: agents.a.runtime: codex comes later",
        ),
        ("agents:\n  a:\n    command: x\n    env: {A: }\n", "interlock.yaml:4: agents.a.env.A: has no value"),
        ("agents:\n  a:\n    command: x\n    env: {A-B: c}\n", "interlock.yaml:4: agents.a.env.A-B: is no good name"),
        (
            "agents:\n  a:\n    command: x\n    env: {INTERLOCK_DB: c}\n",
            "interlock.yaml:4: agents.a.env.INTERLOCK_DB: ",
        ),
        ("agents:\n  ' a': x\n", "interlock.yaml:2: agents. a: is no good name"),
        ("agents: x\n", "interlock.yaml:1: agents: a mapping is expected"),
        ("version: 2\n", "interlock.yaml:1: version: 2 is out of range"),
        ("- a\n", "interlock.yaml:1: a mapping is expected"),
        ("dispatch: {a: b\n", "interlock.yaml:2: column 1: "),
        ("dispatch:\n  <<: {a: b}\n", "interlock.yaml:2: dispatch: merge keys"),
        ('dispatch:\n  "mo\\x01de": push\n', 'interlock.yaml:2: dispatch: key "mo'),
        ("dispatch:\n  eligibility:\n    tags: {a: b}\n", "interlock.yaml:3: dispatch.eligibility.tags: a list"),
        (
            "dispatch:\n  eligibility:\n    tags: [a, ]\n    minScore: high\n",
            "interlock.yaml:4: dispatch.eligibility.min",
        ),
        ("dispatch:\n  eligibility:\n    tags: [a, ~]\n", "interlock.yaml:3: dispatch.eligibility.tags[1]: is empty"),
        ("dispatch:\n  timeout: [5m]\n", "interlock.yaml:2: dispatch.timeout: a duration is expected"),
        ("dispatch:\n  minFreeMemory:\n    a: b\n", "interlock.yaml:2: dispatch.minFreeMemory: a size is expected"),
        (
            "agents:\n  a:\n    command: x\n    env: [A]\n",
            "interlock.yaml:4: agents.a.env: a mapping of names to texts",
        ),
        ("agents:\n  a:\n    command: x\n    env: {A: [b]}\n", "interlock.yaml:4: agents.a.env.A: text is expected"),
        (
            "dispatch:\n  concurrency:\n    perTag: {' a': 1}\n",
            "interlock.yaml:3: dispatch.concurrency.perTag. a: is no",
        ),
    ],
)
def test_a_fault_has_its_place(text: str, wanted: str) -> None:
    (fault,) = faults(text)
    assert fault.startswith(wanted)


def test_all_faults_are_told() -> None:
    told = faults("dispatch:\n  modus: x\n  timeout: 5\nagents:\n  a: {}\nserver:\n  listen: 127.0.0.1:1\nstor: x\n")
    assert [line.split(": ")[1] for line in told] == ["dispatch.modus", "dispatch.timeout", "stor"]


def test_later_sections_are_reported_with_all_that_is_inside() -> None:
    config = parse_config(
        b"store:\n  kind: postgres\n  pool: { size: 3 }\nserver: {}\nroles: { r: { workspace: plain } }\n"
    )
    assert [(each.place, each.key) for each in config.inactive] == [
        ("interlock.yaml:2", "store.kind"),
        ("interlock.yaml:3", "store.pool.size"),
        ("interlock.yaml:5", "roles.r.workspace"),
    ]


@pytest.mark.parametrize("text", ["", "# nothing\n", "dispatch:\n", "agents:\nroles:\ndispatch: {}\n"])
def test_nothing_said_is_the_default(text: str) -> None:
    assert parse_config(text.encode()) == Config()


def test_a_missing_file_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        load_config(tmp_path / "interlock.yaml")


def test_the_example_loads_to_the_defaults_and_so_does_what_it_comments_out() -> None:
    text = example_config()
    assert parse_config(text.encode()) == Config()
    whole = re.sub(r"(?m)^( *)# ( *[a-zA-Z]+:(?: |$))", r"\1\2", text)
    config = parse_config(whole.encode())
    assert not config.inactive
    assert set(config.settings.agents) == {"worker"}
    assert set(config.settings.roles) == {"reviewer"}
    assert config.settings.limits.per_tag == {"some-tag": 2}
    assert all(len(line) <= 110 for line in text.splitlines())


def test_the_reference_lists_every_key_with_its_default() -> None:
    rows = {row.key: row for row in reference_rows()}
    assert len(rows) == len(KEYS)
    assert (rows["dispatch.timeout"].default, rows["dispatch.timeout"].active) == ("1h", True)
    assert rows["dispatch.mode"].kind == "one of push, pull"
    assert not rows["dispatch.eligibility.minScore"].active
    assert all(row.meaning for row in rows.values())
