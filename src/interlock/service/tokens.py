"""Tokens for access over HTTP. A secret is shown once, when it is made; what is kept shows only that somebody has it."""

from __future__ import annotations

import base64
import hashlib
import hmac

from interlock.domain.errors import Conflict, InvalidInput, NotFound
from interlock.domain.token import Scope, Token
from interlock.ports.store import Tx
from interlock.service.context import Context

PREFIX = "ilk_"
_SECRET_BYTES = 32


def digest_of(secret: str) -> str:
    """What is kept. A secret of 256 random bits needs no slow hash: there is nothing to guess."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


def create(tx: Tx, ctx: Context, name: str, scope: Scope) -> str:
    """Make a token: its secret, 256 random bits behind a prefix by which scanners find it where it should not be. Raises Conflict
    when there is one of that name.
    """
    if not name.strip() or len(name) > 100 or not name.isprintable():
        raise InvalidInput(
            f"'{name}' is no name for a token", hint="1 to 100 printable characters, such as ci or laptop"
        )
    if any(token.name == name for token in tx.tokens()):
        raise Conflict(
            f"there is a token '{name}' already", hint=f"`interlock token revoke {name}` first, or take another name"
        )
    secret = PREFIX + base64.urlsafe_b64encode(ctx.rng.randbytes(_SECRET_BYTES)).decode().rstrip("=")
    tx.add_token(Token(name=name, scope=scope, digest=digest_of(secret), created_ms=ctx.now_ms))
    return secret


def revoke(tx: Tx, name: str) -> None:
    """It is not accepted any more. Raises NotFound."""
    if not tx.delete_token(name):
        known = ", ".join(token.name for token in tx.tokens()) or "none"
        raise NotFound(f"there is no token '{name}'", hint=f"tokens: {known}")


def token_of(tx: Tx, secret: str) -> Token | None:
    """The token that a secret belongs to."""
    digest = digest_of(secret)
    found = tx.token(digest)
    # By the digest's index, which tells by its time nothing about a secret; the comparison is exact.
    return found if found is not None and hmac.compare_digest(found.digest, digest) else None
