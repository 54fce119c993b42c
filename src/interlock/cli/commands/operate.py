"""Commands that change runs: ``cancel``, ``retry``, ``close``, ``hold``, ``unhold``, ``set``, ``answer``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from interlock.cli.output import on_terminal, print_json, say
from interlock.cli.runs import (
    each_run,
    json_option,
    named,
    outlook,
    run_argument,
    run_words,
    runs_argument,
)
from interlock.cli.session import Session, pass_session
from interlock.cli.text import count
from interlock.domain.errors import Conflict
from interlock.domain.run import Run
from interlock.domain.states import RunState

if TYPE_CHECKING:
    from interlock.cli.host import Opened


def _cancelled(run: Run) -> str:
    if run.terminal:
        return f"{run_words(run)} is cancelled."
    assert run.stop is not None
    if run.stop.kind == "cancel":
        return f"{run_words(run)} is being stopped; it is cancelled once its agent is gone."
    return f"{run_words(run)} is being stopped already ({run.stop.kind}: {run.stop.message})."


@click.command()
@runs_argument
@click.option("--all", "everything", is_flag=True, help="Every run that has not ended.")
@click.option("--tag", help="Every run with this tag that has not ended.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@json_option
@pass_session
def cancel(
    session: Session, /, runs: Sequence[str], everything: bool, tag: str | None, yes: bool, as_json: bool
) -> int:
    """Cancel runs. One that has an agent moves once the agent is gone.

    \b
    Examples:
      interlock cancel 12 13
      interlock cancel --tag nightly
      interlock cancel --all --yes
    """
    if sum((bool(runs), everything, tag is not None)) != 1:
        raise click.UsageError("Name runs, or give --all, or give --tag.")

    async def cancel_them(il: Opened) -> int:
        from interlock.service.sweeping import cancel_all, unfinished  # noqa: PLC0415

        if runs:
            return await each_run(il, runs, il.service.cancel, words=_cancelled, as_json=as_json)
        chosen = await unfinished(il.service, tag=tag)
        if everything and chosen and not yes and on_terminal():
            click.confirm(f"Cancel {count(len(chosen), 'run')}?", abort=True, err=True)
        done = await cancel_all(il.service, chosen)
        if as_json:
            print_json(done)
            return 0
        stopping = sum(not run.terminal for run in done)
        words = f"{count(len(done) - stopping, 'run')} cancelled"
        if stopping:
            words += f", {stopping} more once {'its agent is' if stopping == 1 else 'their agents are'} gone"
        say(f"{words}.")
        return 0

    return session.run(cancel_them)


@click.command()
@runs_argument
@click.option("--failed", is_flag=True, help="Every run that failed or timed out and was not run again yet.")
@click.option("--tag", help="With --failed: only those with this tag.")
@json_option
@pass_session
def retry(session: Session, /, runs: Sequence[str], failed: bool, tag: str | None, as_json: bool) -> int:
    """Run ended runs again, each as a new run that remembers the old one (retry_of).

    \b
    Examples:
      interlock retry 12
      interlock retry --failed
    """
    if bool(runs) == failed:
        raise click.UsageError("Name runs, or give --failed.")
    if tag is not None and not failed:
        raise click.UsageError("--tag goes with --failed.")

    async def retry_them(il: Opened) -> int:
        from interlock.service.sweeping import failed_runs  # noqa: PLC0415

        refs = list(runs)
        if failed:
            numbers = [run.number for run in await failed_runs(il.service, tag=tag)]
            refs = [str(number) for number in await il.service.needs_first(numbers)]
            if not refs and not as_json:
                say("No run has failed that was not run again already.")
        status = await each_run(
            il,
            refs,
            il.service.retry,
            words=lambda made: f"#{made.retry_of} is run again as {run_words(made)}.",
            as_json=as_json,
        )
        if refs and status == 0 and not as_json and (following := await outlook(il)):
            say(following)
        return status

    return session.run(retry_them)


@click.command()
@runs_argument
@click.option("--message", metavar="TEXT", default="done elsewhere", show_default=True, help="What is kept with them.")
@json_option
@pass_session
def close(session: Session, /, runs: Sequence[str], message: str, as_json: bool) -> int:
    """Say that runs were done elsewhere: they are completed, and what needs them goes on. An agent at work on one is stopped.

    \b
    Example:
      interlock close 12 --message 'done by hand'
    """
    named(runs)

    def words(run: Run) -> str:
        if run.terminal:
            return f"{run_words(run)} is completed: {run.message}"
        return f"{run_words(run)} is being stopped; it is completed once its agent is gone."

    return session.run(
        lambda il: each_run(il, runs, lambda run: il.service.close(run, message=message), words=words, as_json=as_json)
    )


@click.command()
@runs_argument
@json_option
@pass_session
def hold(session: Session, /, runs: Sequence[str], as_json: bool) -> int:
    """Keep runs from starting until `interlock unhold`. What runs already goes on.

    \b
    Example:
      interlock hold 12 13
    """
    named(runs)

    def words(run: Run) -> str:
        if run.active:
            return f"{run_words(run)} is {run.state} and goes on; should it come back to the queue, it stays there."
        return f"{run_words(run)} is on hold: `interlock unhold {run.number}` lets it start."

    return session.run(lambda il: each_run(il, runs, il.service.hold, words=words, as_json=as_json))


@click.command()
@runs_argument
@json_option
@pass_session
def unhold(session: Session, /, runs: Sequence[str], as_json: bool) -> int:
    """Let held runs start again.

    \b
    Example:
      interlock unhold 12 13
    """
    named(runs)

    async def let_go(il: Opened) -> int:
        status = await each_run(
            il, runs, il.service.unhold, words=lambda run: f"{run_words(run)} is not on hold.", as_json=as_json
        )
        if status == 0 and not as_json and (following := await outlook(il)):
            say(following)
        return status

    return session.run(let_go)


@click.command("set")
@runs_argument
@click.option("--priority", type=int, required=True, help="Its own priority; that of its route is added.")
@json_option
@pass_session
def set_run(session: Session, /, runs: Sequence[str], priority: int, as_json: bool) -> int:
    """Change the priority of runs. Higher goes first.

    \b
    Example:
      interlock set 12 --priority 9
    """
    named(runs)

    def words(run: Run) -> str:
        added = run.priority - run.base_priority
        route = f" ({run.priority} with its route's {added:+d})" if added else ""
        late = "" if run.state is RunState.QUEUED else f" It is {run.state} already; this counts if it is queued again."
        return f"{run_words(run)} has priority {run.base_priority}{route}.{late}"

    return session.run(
        lambda il: each_run(il, runs, lambda run: il.service.set_priority(run, priority), words=words, as_json=as_json)
    )


@click.command()
@run_argument
@click.argument("text")
@json_option
@pass_session
def answer(session: Session, /, run: str, text: str, as_json: bool) -> int:
    """Answer the question of a blocked run. It is queued again, with question and answer in its next prompt.

    \b
    Example:
      interlock answer 12 'Use the second one.'
    """

    async def give(il: Opened) -> int:
        status = await each_run(
            il,
            [run],
            lambda found: _give(il, found, text),
            words=lambda answered: f"{run_words(answered)} has its answer and is queued again.",
            as_json=as_json,
        )
        if status == 0 and not as_json and (following := await outlook(il)):
            say(following)
        return status

    return session.run(give)


async def _give(il: Opened, run: Run, text: str) -> Run:
    if run.state is not RunState.BLOCKED:
        raise Conflict(
            f"run #{run.number} is {run.state}: it has asked nothing",
            hint="`interlock ps --state blocked` lists the runs that wait for an answer",
        )
    return await il.service.answer(run, text)
