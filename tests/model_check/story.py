"""A way through the states, told to people: a line for each step, with every run as it is after it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from record import Age, Owner, Record, Who
from world import Actor, Agent, Around, At, Files, Phase, Proc, Shared

if TYPE_CHECKING:
    from explore import Explorer

_PROCESSES = {
    Proc.NEVER: "no process",
    Proc.CHILD: "child alive",
    Proc.PASSED: "child alive",
    Proc.AGENT: "agent alive",
    Proc.GONE: "agent gone",
}


def replay(explorer: Explorer, key: int, *, at_step: bool) -> tuple[list[str], str | None]:
    """The way to ``key`` under names that do not change on the way; with ``at_step`` the faulty step behind it."""
    keys = [key]
    while explorer.parents[keys[-1]] >= 0:
        keys.append(explorer.parents[keys[-1]])
    explorer.begin_replay()
    shared, own = explorer.start()
    lines = [f"{'start':<58} {explorer.described(shared, own)}"]
    fault = explorer.wrong(shared, own)
    for wanted in reversed(keys[:-1]):
        shared, own, line = _step_to(explorer, shared, own, wanted)
        fault = explorer.wrong(shared, own)
        lines.append(line)
    if at_step:
        for label, new, to, fault in ((one[0], one[1], one[2], one[3]) for one in explorer.moves(shared, own)):
            if fault is not None:
                lines.append(f"{label:<58} {explorer.described(new, to)}")
                return lines, fault
        raise AssertionError("the faulty step is gone")
    return lines, fault


def _step_to(explorer: Explorer, shared: int, own: tuple[int, ...], wanted: int) -> tuple[int, tuple[int, ...], str]:
    for label, new, to, _, _ in explorer.moves(shared, own):
        if explorer.canonical(new, explorer.renamed(to)) == wanted:
            return new, to, f"{label:<58} {explorer.described(new, to)}"
    raise AssertionError(f"no step leads on from: {explorer.described(shared, own)}")


def describe(shared: Shared, runs: list[Around]) -> str:
    """The whole state in a line."""
    ups = " ".join(f"d{d} {up.name.lower()}" for d, up in enumerate(shared.dispatchers))
    parts = [ups + (" paused" if shared.paused else "")]
    for index, around in enumerate(runs):
        name = "run" if len(runs) == 1 else f"r{index}"
        parts.append(f"{name} {_run(around)}")
    return "| " + " | ".join(parts)


def _run(around: Around) -> str:
    record = around.record
    words = [str(record.state), *_claim(record)]
    for fence, files in enumerate(around.files, 1):
        if files is not None:
            words.append(f"[{fence}: {_files(files)}]")
    for d, actors in enumerate(around.actors):
        words += [_actor(d, actor) for actor in actors]
    for name, agent in zip("XY", around.agents, strict=False):
        words += _agent(name, agent)
    return " ".join(words)


def _claim(record: Record) -> list[str]:
    words = [f"fence {record.fence}"] if record.fence else []
    if record.live:
        holder = Who(record.holder)
        owner = f" of {Owner(record.owner).name.lower()}" if holder is Who.LOCAL else ""
        words.append(f"held by {holder.name.lower()}{owner}")
    if record.stop is not None:
        words.append(f"stop={record.stop}" + (f" then {record.then}" if record.then else ""))
    if record.age != Age.FRESH:
        words.append("deadline " + Age(record.age).name.lower())
    words += ["on hold"] * record.held
    return words


def _files(files: Files) -> str:
    said = f", left '{files.word}'" if files.word else ""
    return _PROCESSES[Proc(files.proc)] + said + (", void" if files.void else "")


def _actor(d: int, actor: Actor) -> str:
    return f"d{d}:{At(actor.at).name.lower()}({actor.fence})"


def _agent(name: str, agent: Agent) -> list[str]:
    if agent == Agent():
        return []
    fence = f"({agent.fence})" if agent.fence else ""
    under_way = " +request" if agent.request else ""
    older = " +older request" if agent.older else ""
    return [f"{name}:{Phase(agent.phase).name.lower()}{fence}{under_way}{older}"]
