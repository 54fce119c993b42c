"""An agent in Python: takes one run after another, and works on it in this process.

    python agent.py
    INTERLOCK_URL=http://host:7420 INTERLOCK_TOKEN=... python agent.py

`interlock agent --exec CMD` runs a command instead, and keeps what it has to report on disk.
"""

import os
import socket
import threading

from interlock.client import Client, Patience
from interlock.domain.errors import StaleClaim

SESSION = f"python@{socket.gethostname()}:{os.getpid()}"


def work(prompt: str, stopped: threading.Event) -> tuple[str, object]:
    """The work itself: what is to be in the log, and the result (anything that JSON can say)."""
    del stopped  # a longer work looks at it, and ends early
    return f"I was asked:\n{prompt}\n", {"words": len(prompt.split())}


def see_through(client: Client, claim) -> None:
    """Work on a claim, and keep it meanwhile: without heartbeats it goes to somebody else."""
    stopped, done = threading.Event(), threading.Event()

    def beat() -> None:
        with Client() as heart:
            while not done.wait(min(claim.heartbeat_seconds, 10)):
                try:
                    go_on = heart.heartbeat(claim).go_on
                except StaleClaim:
                    go_on = False
                if not go_on:
                    stopped.set()

    heart = threading.Thread(target=beat)
    heart.start()
    try:
        client.start(claim)
        log, result = work(claim.prompt, stopped)
        client.append_log(claim, 0, log.encode())
        client.complete(claim, result=result)
    except StaleClaim as error:
        print(f"#{claim.run.number}: {error}")
    except Exception as error:
        client.fail(claim, f"{type(error).__name__}: {error}")
        raise
    finally:
        done.set()
        heart.join()


def main() -> None:
    """For ever. The client sends again what the server did not answer, for up to ten minutes."""
    with Client(patience=Patience(seconds=600)) as client:
        while True:
            claim = client.claim_next(SESSION, wait=30)
            if claim is not None:
                print(f"#{claim.run.number}: {claim.run.title}", flush=True)
                see_through(client, claim)


if __name__ == "__main__":
    main()
