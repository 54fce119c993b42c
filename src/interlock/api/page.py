"""The page at ``/docs``: the description of the API to be browsed and tried. One file, which needs nothing from elsewhere."""

from __future__ import annotations

import secrets
from importlib.resources import files

from litestar import Response


def page() -> Response[bytes]:
    """The page, with a policy under which nothing but itself runs, and nobody but this server is asked."""
    nonce = secrets.token_urlsafe(16)
    text = files("interlock.api").joinpath("docs.html").read_text("utf-8").replace("{nonce}", nonce)
    policy = "; ".join(
        (
            "default-src 'none'",
            f"script-src 'nonce-{nonce}'",
            f"style-src 'nonce-{nonce}'",
            "connect-src 'self'",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
        )
    )
    headers = {"Content-Security-Policy": policy, "X-Frame-Options": "DENY", "Referrer-Policy": "no-referrer"}
    return Response(text.encode(), media_type="text/html", headers=headers)
