"""The page at /docs: of one piece, under a policy that lets nothing else in, and about the description that is served."""

from __future__ import annotations

import re
from typing import Any


async def test_the_page_needs_nothing_from_elsewhere(site: Any) -> None:
    answer = await site.client.get("/docs")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    text = answer.text
    assert re.findall(r"(?:https?:)?//[\w.-]+\.\w+", text) == []
    assert re.findall(r"<(?:link|img|iframe|object|embed)\b", text) == []
    assert re.findall(r"<script[^>]*\bsrc=", text) == []
    assert re.findall(r"\s(?:on\w+|style)=", re.sub(r"<script.*?</script>", "", text, flags=re.DOTALL)) == []
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b", text)


async def test_nothing_but_the_page_runs_in_it(site: Any) -> None:
    nonces = set()
    for _ in range(2):
        answer = await site.client.get("/docs")
        policy = dict(each.split(" ", 1) for each in answer.headers["content-security-policy"].split("; "))
        assert policy["default-src"] == policy["frame-ancestors"] == policy["base-uri"] == "'none'"
        assert policy["connect-src"] == "'self'"
        nonce = policy["script-src"].removeprefix("'nonce-").removesuffix("'")
        assert policy["script-src"] == policy["style-src"] == f"'nonce-{nonce}'"
        assert answer.text.count(f'nonce="{nonce}"') == 2
        assert "{nonce}" not in answer.text
        nonces.add(nonce)
    assert len(nonces) == 2


async def test_the_page_reads_what_is_served(site: Any) -> None:
    text = (await site.client.get("/docs")).text
    assert 'fetch("/openapi.json"' in text
    document = await site.get("/openapi.json")
    tags = {tag["name"] for tag in document["tags"]}
    assert {tag for path in document["paths"].values() for one in path.values() for tag in one["tags"]} == tags
