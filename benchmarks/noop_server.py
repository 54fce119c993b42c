"""The floor of the gateway's rows: Litestar on hypercorn's trio worker, a POST that decodes a body and does nothing.

As a program: ``python -m benchmarks.noop_server`` prints its port and serves until it is killed.
"""

from __future__ import annotations

import socket

import msgspec
import trio
from hypercorn.config import Config
from hypercorn.trio import serve
from litestar import Litestar, post
from litestar.params import JSONBody


class Asked(msgspec.Struct):
    """The body of a claim-next."""

    agent_session: str
    request_id: str


@post("/noop", status_code=200)
async def noop(data: JSONBody[Asked]) -> dict[str, str]:
    """Nothing."""
    return {"session": data.agent_session}


def main() -> None:
    """Serve."""
    listening = socket.create_server(("127.0.0.1", 0), backlog=512)
    print(listening.getsockname()[1], flush=True)
    config = Config()
    config.bind = [f"fd://{listening.fileno()}"]
    trio.run(serve, Litestar([noop], openapi_config=None, logging_config=None), config)


if __name__ == "__main__":
    main()
