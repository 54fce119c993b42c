"""Adapters that start, watch and stop agents: :class:`CommandRuntime` for processes, :class:`FunctionRuntime` for functions.

What is promised (Linux): at most one live tree per attempt folder, always; that nothing of a tree survives ``stop``,
with cgroups always, without them but for what :mod:`interlock.runtimes.tree` names.
"""

from interlock.runtimes.attempt_lock import give_up
from interlock.runtimes.command import CommandRuntime
from interlock.runtimes.descriptors import raise_fd_limit
from interlock.runtimes.function import AgentContext, FunctionRuntime
from interlock.runtimes.memory import available_memory_bytes

__all__ = ["AgentContext", "CommandRuntime", "FunctionRuntime", "available_memory_bytes", "give_up", "raise_fd_limit"]
