"""Interlock over HTTP, for Python: :class:`Client`, and :class:`AsyncClient` under trio and asyncio.

::

    with Client() as client:
        claim = client.claim_next("my-session", wait=30)
        if claim is not None:
            client.complete(claim, result={"answer": 42})

Both have the same calls, from one description (:mod:`interlock.client.calls`). A refusal of the server is raised as the
:class:`~interlock.domain.errors.InterlockError` of its code; what cannot be reached is ``Unavailable``, after it was tried again
for as long as :class:`Patience` says.
"""

from interlock.client.calls import Held, Log, Request
from interlock.client.clients import AsyncClient, Client
from interlock.client.trying import Patience, Trouble

__all__ = ["AsyncClient", "Client", "Held", "Log", "Patience", "Request", "Trouble"]
