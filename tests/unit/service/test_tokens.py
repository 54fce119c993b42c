"""Tokens: made once, found by their secret, gone when they are revoked; the secret is nowhere in the file."""

from __future__ import annotations

import hmac

import pytest
from yard import Yard

from interlock.domain.errors import Conflict, InvalidInput, NotFound
from interlock.domain.token import Scope
from interlock.service import tokens


def test_the_way_of_a_token(yard: Yard) -> None:
    secret = yard.do(tokens.create, "laptop", Scope.AGENT)
    assert secret.startswith("ilk_")
    assert len(secret) > 40
    found = yard.read(lambda tx: tokens.token_of(tx, secret))
    assert found is not None
    assert (found.name, found.scope, found.created_ms) == ("laptop", Scope.AGENT, yard.now)
    for wrong in (secret[:-1], secret + "x", secret.upper(), "", found.digest, "\udc80"):
        assert yard.read(lambda tx, wrong=wrong: tokens.token_of(tx, wrong)) is None
    yard.do(lambda tx, _: tokens.revoke(tx, "laptop"))
    assert yard.read(lambda tx: tokens.token_of(tx, secret)) is None


def test_the_secret_is_not_kept(yard: Yard) -> None:
    secret = yard.do(tokens.create, "laptop", Scope.READ)
    yard.store.close()
    for file in yard.path.parent.iterdir():
        if file.is_file():
            assert secret.encode() not in file.read_bytes()


def test_each_is_another_one(yard: Yard) -> None:
    assert len({yard.do(tokens.create, str(n), Scope.READ) for n in range(20)}) == 20


def test_names(yard: Yard) -> None:
    yard.do(tokens.create, "laptop", Scope.READ)
    with pytest.raises(Conflict, match="laptop"):
        yard.do(tokens.create, "laptop", Scope.READ)
    for name in ("", " ", "x" * 101, "a\nb"):
        with pytest.raises(InvalidInput):
            yard.do(tokens.create, name, Scope.READ)
    with pytest.raises(NotFound, match="ghost") as caught:
        yard.do(lambda tx, _: tokens.revoke(tx, "ghost"))
    assert caught.value.hint == "tokens: laptop"


def test_each_scope_reaches_as_far_as_those_before_it() -> None:
    assert [[a.reaches(b) for b in Scope] for a in Scope] == [
        [True, False, False],
        [True, True, False],
        [True, True, True],
    ]


def test_secrets_are_compared_in_constant_time(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = yard.do(tokens.create, "laptop", Scope.AGENT)
    compared = []
    real = hmac.compare_digest
    monkeypatch.setattr(hmac, "compare_digest", lambda one, other: compared.append((one, other)) or real(one, other))
    assert yard.read(lambda tx: tokens.token_of(tx, secret)) is not None
    assert compared == [(tokens.digest_of(secret), tokens.digest_of(secret))]
