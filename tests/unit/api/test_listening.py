"""Where a gateway listens: what is taken is told, what is stale is replaced, what somebody else has is left alone."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import httpx
import pytest
import trio

from interlock.api.listening import Listen, Listening
from interlock.domain.errors import Conflict, InvalidInput
from interlock.domain.places import API_SOCKET


def test_a_port_that_is_taken_is_told_or_another_one_serves(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(Conflict, match=f"127.0.0.1:{port}"):
            Listening(Listen(port=port, folder=tmp_path)).open()
        assert not (tmp_path / API_SOCKET).exists()
        other = Listening(Listen(port=port, insists=False))
        (opened,) = other.open()
        assert opened.getsockname()[1] not in (0, port)
        other.close()


def test_there_is_no_such_address() -> None:
    with pytest.raises(InvalidInput, match="no address"):
        Listening(Listen(host="no such host", port=1)).open()


def test_opened_once_and_closed_whenever(tmp_path: Path) -> None:
    listening = Listening(Listen(port=0, folder=tmp_path))
    listening.close()
    assert listening.open() is listening.open()
    assert len(listening.addresses) == 2
    listening.close()
    listening.close()
    assert list(tmp_path.iterdir()) == []


def test_the_socket_file_of_one_that_died_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / API_SOCKET
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    listening = Listening(Listen(port=0, folder=tmp_path))
    listening.open()
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
    assert path.stat().st_mode & 0o777 == 0o600
    listening.close()


def test_the_socket_file_of_one_that_lives_is_left_to_it(tmp_path: Path) -> None:
    """A peer of the same folder serves by its address."""
    first, second = (Listening(Listen(port=0, folder=tmp_path)) for _ in range(2))
    first.open()
    second.open()
    assert len(second.addresses) == 1
    second.close()
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(tmp_path / API_SOCKET))
    first.close()


def test_what_is_no_socket_is_not_removed(tmp_path: Path) -> None:
    path = tmp_path / API_SOCKET
    path.write_text("mine")
    with pytest.raises(Conflict, match="remove what is there"):
        Listening(Listen(port=0, folder=tmp_path)).open()
    assert path.read_text() == "mine"


def test_a_folder_with_a_long_path(tmp_path: Path) -> None:
    folder = tmp_path / ("x" * 90) / ("y" * 90)
    folder.mkdir(parents=True)
    listening = Listening(Listen(port=0, folder=folder))
    listening.open()
    assert (folder / API_SOCKET).is_socket()
    listening.close()
    assert list(folder.iterdir()) == []


async def test_the_server_is_started_again_when_it_ends_by_itself(site: Any) -> None:
    """The dispatcher beside it goes on all the while."""
    site.gateway.server.should_exit = True
    with trio.fail_after(20):
        while site.gateway.server.should_exit:
            await trio.sleep(0.02)
        while True:
            try:
                answer = await site.client.get(site.gateway.addresses[0] + "/healthz")
            except httpx.TransportError:
                await trio.sleep(0.02)
            else:
                break
    assert answer.status_code == 200


@pytest.mark.parametrize("part", ["board", "meter"])
async def test_a_part_that_crashes_is_started_again(site: Any, part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = getattr(site.gateway, part)
    crashes: list[int] = []
    find = site.service.events if part == "meter" else broken.look

    def once(*arguments: Any) -> Any:
        if not crashes:
            crashes.append(1)
            raise RuntimeError("broken")
        return find(*arguments)

    monkeypatch.setattr(site.service if part == "meter" else broken, "events" if part == "meter" else "look", once)
    await site.offer("one")
    with trio.fail_after(20):
        while not crashes:
            await trio.sleep(0.02)
    monkeypatch.undo()
    claim = await site.post("/claim-next", {"agent_session": "s", "wait": 20})
    assert claim["run"]["title"] == "one"
