"""The same steps as a state machine for Hypothesis, which draws them and makes a failure small."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from interlock.domain.run import Route
from interlock.domain.settings import Settings
from interlock.ports.store import Store
from interlock.testing.beside import steps
from interlock.testing.beside.beside import Beside
from interlock.testing.beside.desk import Desk, SqliteDesk, StoreDesk

__all__ = ["ServiceMachine", "steps"]


class ServiceMachine(RuleBasedStateMachine):
    """The service beside a model of it: any interleaving of commands, what always holds checked after each.

    As it is, it draws settings with small limits and runs on the SQLite store. Point it at your own by subclassing::

        class MyMachine(ServiceMachine):
            configuration = interlock.Settings(limits=interlock.Limits(total=3), ...)
            routes = (interlock.Route(workflow_type="review", agent_id="reviewer"),)

            def make_store(self, folder):
                return MyStore(folder)

        TestMine = MyMachine.TestCase

    ``configuration``: settings (limits, agents, roles, budgets, leases); None draws them. ``routes`` are there from the
    beginning. :meth:`make_store` opens the store of a folder.
    """

    configuration: ClassVar[Settings | None] = None
    routes: ClassVar[Sequence[Route]] = ()

    def __init__(self) -> None:
        super().__init__()
        self.beside = Beside(self._desk(), settings=self.configuration, routes=self.routes)

    def make_store(self, folder: Path) -> Store | None:  # noqa: ARG002 - for those who have one
        """The store that is kept in ``folder``: a new one, or after a restart that one again. None: the SQLite store."""
        return None

    def _desk(self) -> Desk:
        if type(self).make_store is ServiceMachine.make_store:
            return SqliteDesk()
        return StoreDesk(self.make_store)

    @initialize(data=st.data())
    def begin(self, data: st.DataObject) -> None:
        """A configuration, and some work."""
        self.beside.begin(_by_hypothesis(data))

    @rule(data=st.data())
    def step(self, data: st.DataObject) -> None:
        """One step, whichever it is."""
        self.beside.step(_by_hypothesis(data))

    def teardown(self) -> None:
        """Leave nothing behind."""
        self.beside.close()


def _by_hypothesis(data: st.DataObject) -> Any:
    return lambda label, options: data.draw(st.sampled_from(options), label=label)
