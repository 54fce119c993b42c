"""The suite for runtimes: a whole one passes it, and each check fails for a runtime that breaks its promise."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any
from unittest import SkipTest

import pytest
import trio

sys.path.insert(0, str(Path(__file__).parent))

import broken_runtimes as broken

from interlock.domain.settings import Agent
from interlock.testing import Broken, Deed, RuntimeConformance


def suite_for(kind: type[broken.Whole], patience: float = 60.0) -> RuntimeConformance:
    """The suite over a runtime of this kind."""

    class Suite(RuntimeConformance):
        patience_seconds = patience

        async def make_runtime(self, nursery: trio.Nursery) -> Any:
            return kind()

    return Suite()


class TestAWholeRuntime(RuntimeConformance):
    """What the broken ones are made of keeps every promise."""

    async def make_runtime(self, nursery: trio.Nursery) -> Any:
        return broken.Whole()


CASES = [
    (broken.Changes, "an_ended_agent_has_one_status", "Ending(exit_status=None)"),
    (broken.ForgetsTheStatus, "an_ended_agent_has_one_status", "recover() says"),
    (broken.EndsTooSoon, "several_wait", "an agent that goes on is reported as ended"),
    (broken.OneWaiter, "several_wait", "three that waited were told"),
    (broken.LosesThePrompt, "prompt_and_log", "and the log is ''"),
    (broken.CountsWrongly, "prompt_and_log", "activity() counts 0"),
    (broken.ForgetsTheStatus, "stop", "recover() Ended"),
    (broken.StopsOnce, "several_stop", None),
    (broken.StopsNothing, "stop_of_a_deaf_agent", "recover() says Alive"),
    (broken.OnlyAsks, "stop_of_a_deaf_agent", "recover() says Alive"),
    (broken.ForgetsTheChild, "what_an_agent_leaves_behind_is_ended_too", "what the agent left behind goes on"),
    (broken.SaysEndedTooSoon, "what_an_agent_leaves_behind_is_ended_too", "something of the tree lives"),
    (broken.LaunchesAgain, "an_attempt_is_launched_once", "a second launch while its agent runs answered None"),
    (broken.LaunchesBoth, "launches_at_once", "three launches of one attempt started"),
    (broken.GuessesNeverStarted, "a_launch_against_a_recovery", "recover() said NeverStarted"),
    (broken.GuessesNeverStarted, "a_running_agent_is_found", "recover() says NeverStarted"),
    (broken.FindsAStranger, "a_running_agent_is_found", "is found as"),
    (broken.TwoTruths, "a_found_agent_can_be_stopped", "the two handles of one agent report"),
    (broken.MakesNothingVoid, "what_never_started_never_starts", "a launch after recover() said NeverStarted"),
    (broken.ForgetsThatItStarted, "what_was_started_is_not_never_started", "whose folder is gone is NeverStarted"),
    (broken.KnowsFoldersOnly, "the_folder_is_removed", "an agent whose folder is gone runs"),
    (broken.KillsAtClose, "a_closed_handle_lets_the_agent_live", "its handle was closed"),
    (broken.ChecksNothing, "what_cannot_start", "check() says None of an agent that cannot be started"),
    (broken.RaisesOSError, "what_cannot_start", "the launch of what cannot start answered OSError"),
    (broken.LeaksDescriptors, "what_cannot_start", "left 1 descriptors open"),
    (broken.ChecksNothing, "missing_folders", "check() says None of a working folder"),
    (broken.MakesFolders, "missing_folders", "a launch"),
    (broken.LeaksDescriptors, "nothing_is_left", "five agents left 5 descriptors open"),
    (broken.LeavesZombies, "nothing_is_left", "nobody waited for them"),
]


@pytest.mark.parametrize(("kind", "check", "words"), CASES, ids=[f"{c[1]}-{c[0].__name__}" for c in CASES])
def test_a_broken_runtime_is_found_out(kind: type[broken.Whole], check: str, words: str | None) -> None:
    """``words`` None: what goes wrong is an error of the runtime itself, and comes through as it is."""
    run = getattr(suite_for(kind), f"test_{check}")
    if words is None:
        with pytest.raises(BaseException) as failure:  # noqa: PT011 - trio's groups may be around it
            run()
        assert "it was stopped before" in "".join(map(str, leaves(failure.value)))
        return
    with pytest.raises(Broken) as caught:
        run()
    promise, _, seen = str(caught.value).partition("\nBut: ")
    assert promise == run.__doc__
    assert words in seen


def leaves(error: BaseException) -> list[BaseException]:
    """The errors inside of groups."""
    if isinstance(error, BaseExceptionGroup):
        return [leaf for one in error.exceptions for leaf in leaves(one)]
    return [error]


def test_every_check_is_shown_to_fail() -> None:
    checks = {name.removeprefix("test_") for name in dir(RuntimeConformance) if name.startswith("test_")}
    assert {check for _, check, _ in CASES} == checks


def test_what_there_is_no_agent_for_is_skipped() -> None:
    class Few(RuntimeConformance):
        async def make_runtime(self, nursery: trio.Nursery) -> Any:
            return broken.Whole()

        def agent(self, deed: Deed) -> Agent | None:
            return None

    with pytest.raises(SkipTest, match="there is no agent here that writes the line 'working' and goes on"):
        Few().test_stop()


def test_a_suite_without_a_runtime_says_what_to_do() -> None:
    class Nothing(RuntimeConformance):
        pass

    with pytest.raises(BaseException) as caught:  # noqa: PT011 - trio's groups may be around it
        Nothing().test_stop()
    (leaf,) = leaves(caught.value)
    assert "Nothing.make_runtime is to make your runtime" in str(leaf)
