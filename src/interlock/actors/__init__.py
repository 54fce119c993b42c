"""The actors: trio tasks that carry out what the decisions say, through the service."""

from interlock.actors.dispatcher import Dispatcher, Ending

__all__ = ["Dispatcher", "Ending"]
