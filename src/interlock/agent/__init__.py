"""An agent from outside: it pulls offers over HTTP, and runs a command for each.

The loop (:mod:`interlock.agent.pulling`) asks for the next offer, and has each run seen through (:mod:`interlock.agent.work`): the
command is started as by the dispatcher itself, kept alive by heartbeats while it works, its output sent on. Everything that
must not be lost is in a folder of its own (:mod:`interlock.agent.spool`), from before the offer is asked for until the server
has the outcome. So an agent that was killed loses nothing: the next one takes up what it left, commands that still run included.
"""

from interlock.agent.pulling import Identity, PullingAgent
from interlock.agent.spool import Spool
from interlock.agent.work import Around, Happening

__all__ = ["Around", "Happening", "Identity", "PullingAgent", "Spool"]
