"""Why a run waits, in words that stay: ``interlock why --json`` prints them, and scripts read them."""

from __future__ import annotations

import msgspec

from interlock.decide.reasons import Wait, WaitKind

WORDS = """
ended working stopping not_supervised held not_before backoff need blocked limit no_route agent_unavailable memory paused
no_dispatcher out_of_scope disabled store offered behind next
"""


def test_the_words_stay() -> None:
    assert [kind.value for kind in WaitKind] == WORDS.split()
    assert all(kind.value == kind.name.lower() for kind in WaitKind)


def test_a_reason_says_only_what_is_known() -> None:
    wait = Wait(kind=WaitKind.HELD, message="m", short="s")
    assert msgspec.structs.asdict(wait) == {
        "kind": WaitKind.HELD,
        "message": "m",
        "short": "s",
        "remedy": "",
        "by_itself": False,
        "until_ms": None,
        "details": {},
    }
