"""What the conformance suites share: how a check is run, skipped, and what it says when a promise was not kept."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, ClassVar, TypeVar
from unittest import SkipTest

import trio

from interlock.testing.promises import Broken

S = TypeVar("S", bound="Conformance")


class Conformance:
    """A suite: subclass it in a test module, and its ``test_...`` methods are the checks.

    Each runs in a trio loop of its own with a temporary folder (``self.folder``); pytest and unittest find them alike, and no
    plugin is needed. A check that takes longer than ``patience_seconds`` has failed.
    """

    patience_seconds: ClassVar[float] = 60.0
    folder: Path


def promises(promise: str) -> Callable[[Callable[[S], Awaitable[None]]], Callable[[S], None]]:
    """Make a check of an async method. ``promise`` is what the port says, and heads the message when it is not so."""

    def make(check: Callable[[S], Awaitable[None]]) -> Callable[[S], None]:
        def test(self: S) -> None:
            self.folder = Path(tempfile.mkdtemp(prefix="interlock-conformance-"))
            try:
                _run(self, check, promise)
            finally:
                shutil.rmtree(self.folder, ignore_errors=True)

        test.__name__ = check.__name__
        test.__qualname__ = check.__qualname__
        test.__module__ = check.__module__
        test.__doc__ = promise
        return test

    return make


def _run(suite: S, check: Callable[[S], Awaitable[None]], promise: str) -> None:
    async def main() -> None:
        with trio.fail_after(suite.patience_seconds):
            await check(suite)

    try:
        trio.run(main)
    except BaseException as error:
        reason = _the_one(error)
        if isinstance(reason, Broken):
            raise Broken(f"{promise}\nBut: {reason}") from error
        if isinstance(reason, trio.TooSlowError):
            raise Broken(f"{promise}\nBut: nothing came of it in {suite.patience_seconds:g} s") from error
        if isinstance(reason, SkipTest):
            raise reason from None
        raise


def _the_one(error: BaseException) -> BaseException:
    """What is in trio's groups, when it is one thing."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    if isinstance(error, BaseExceptionGroup):
        return next((found for one in error.exceptions if isinstance(found := _the_one(one), Broken)), error)
    return error


def skip(why: str) -> SkipTest:
    """What a check raises that an adapter has nothing to show for."""
    return SkipTest(why)


async def raised_by(act: Callable[[], Awaitable[Any]]) -> Exception | None:
    """What an async call raises; None when it returns."""
    try:
        await act()
    except Exception as error:  # noqa: BLE001 - it is what the check looks at
        return error
    return None


@asynccontextmanager
async def _nothing() -> Any:
    yield


def nothing() -> AbstractAsyncContextManager[None]:
    """A context in which nothing is different."""
    found: AbstractAsyncContextManager[None] = _nothing()
    return found
