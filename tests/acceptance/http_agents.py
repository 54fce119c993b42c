"""Agents as a process of their own: threads that claim what is next over HTTP, say that it is done, and go on.

``http_agents.py PORT_FILE NAME THREADS``: the port is read anew whenever the server cannot be reached. Each claim that was
completed, and acknowledged, is a line ``NUMBER FENCE`` on standard output. Ends when there was nothing to claim twice running.
"""

from __future__ import annotations

import http.client
import json
import sys
import threading
import time
from pathlib import Path
from typing import Any

RUNS = "/api/workflow-runs"
_out = threading.Lock()


class Agent(threading.Thread):
    """One of them."""

    def __init__(self, port_file: Path, name: str) -> None:
        super().__init__(name=name)
        self._port_file = port_file
        self._link: http.client.HTTPConnection | None = None

    def run(self) -> None:
        """Until there is nothing left."""
        empty = asked = 0
        while empty < 2:
            asked += 1
            claim = self._ask(
                "/claim-next",
                {"agent_session": self.name, "request_id": f"{self.name}-{asked}", "lease_seconds": 5, "wait": 0.5},
            )
            if claim is None:
                empty += 1
                continue
            if "error" in claim:
                continue
            empty = 0
            number, fence = claim["run"]["number"], claim["fence"]
            done = self._ask(
                f"/{number}/complete", {"agent_session": self.name, "fence": fence, "result": f"{self.name}-{asked}"}
            )
            if done.get("status") == "completed":
                with _out:
                    print(number, fence, f"{self.name}-{asked}", flush=True)

    def _ask(self, path: str, body: dict[str, Any]) -> Any:
        """An answer, however often it has to be asked for."""
        while True:
            try:
                if self._link is None:
                    port = int(self._port_file.read_text())
                    self._link = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
                self._link.request("POST", RUNS + path, json.dumps(body), {"Content-Type": "application/json"})
                answer = self._link.getresponse()
                content = json.loads(answer.read())
            except (OSError, http.client.HTTPException, ValueError):
                if self._link is not None:
                    self._link.close()
                self._link = None
                time.sleep(0.05)
                continue
            if answer.status < 500:
                return content
            time.sleep(0.05)


if __name__ == "__main__":
    file, prefix, count = sys.argv[1:]
    agents = [Agent(Path(file), f"{prefix}.{n}") for n in range(int(count))]
    for agent in agents:
        agent.start()
    for agent in agents:
        agent.join()
