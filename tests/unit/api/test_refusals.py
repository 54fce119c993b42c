"""What is refused over HTTP: always in the one envelope, with the place of the fault and what to do; and never a 500."""

from __future__ import annotations

import json
from typing import Any

import pytest

from interlock import wire
from interlock.api.asking import DEPTH, read
from interlock.domain.errors import InterlockError

RUNS = "/api/workflow-runs"
SUBMISSION = wire.Submission | list[wire.Submission]


def fault_of(answer: Any, status: int, code: str) -> dict[str, Any]:
    """The fault of an answer, which is an envelope and nothing else."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    assert set(answer.json()) == {"error"}
    fault: dict[str, Any] = answer.json()["error"]
    assert set(fault) == {"code", "message", "hint", "details"}
    assert fault["code"] == code
    assert fault["message"]
    assert fault["hint"], "what to do"
    return fault


def refused(body: bytes, wanted: Any = SUBMISSION) -> tuple[str, str, str]:
    """Code, message and hint of a body that cannot be read."""
    with pytest.raises(InterlockError) as caught:
        read(body, wanted)
    return caught.value.code, caught.value.message, str(caught.value.hint)


@pytest.mark.parametrize(
    ("body", "place", "hint"),
    [
        ({"titel": "x"}, "titel:", "did you mean title?"),
        ([{"title": "a"}, {"title": "b", "context": {"file": []}}], "[1].context.file:", "did you mean files?"),
        ({"title": "a", "zzz": 1}, "zzz:", "it takes: title, template"),
        ({"title": "a", "context": {"files": ["x", 1]}}, "context.files[1]: str is expected, found int", "openapi"),
        ({"title": "a", "priority": 10**7}, "priority: it has to be <= 1000000", "range"),
        ({"title": "a", "priority": 10**30}, "priority:", "range"),
        ({"title": "a", "priority": "1"}, "priority: int | null is expected, found str", "openapi"),
        ({"title": "a", "timeout_seconds": 0}, "timeout_seconds:", "range"),
        ({"title": "a", "held": 1}, "held: bool is expected", "openapi"),
        ({"title": "a", "unique": "x" * 201}, "unique: it is too long: at most 200", "shorten"),
        ({"title": "a\nb"}, "title: it has to be one line", "remove"),
        ({"title": "a\n"}, "title: it has to be one line", "remove"),
        ({"title": "\x1b[31mred"}, "title: it has to be one line", "remove"),
        ({"title": "\u2028"}, "title: it has to be one line", "remove"),
        ({"title": "  "}, "title: it has to be one line", "remove"),
        ({"title": "a", "project": " x"}, "project: it has to be one line", "blanks around it"),
        ({"title": "a", "project": "x\n"}, "project: it has to be one line", "remove"),
        ({"title": "a", "tags": ["ok", "x\x00"]}, "tags[1]: it has to be one line", "remove"),
        ({"title": "a", "content": "a\x00b"}, "content: it has control characters", "remove"),
        ({"title": "a", "content": "a\x7f"}, "content: it has control characters", "remove"),
        ({"title": "a", "not_before": "2026-07-01T09:00:00"}, "not_before:", "2026-07-01T09:00:00Z"),
        ({"title": "a", "not_before": "soon"}, "not_before:", "2026-07-01T09:00:00Z"),
        ({"template": "t", "params": {"a": [1]}}, "params[...]:", "openapi"),
        (5, "the body: object | array is expected, found int", "openapi"),
        (None, "the body:", "openapi"),
    ],
)
def test_a_fault_names_its_place_and_the_remedy(body: Any, place: str, hint: str) -> None:
    code, message, said = refused(json.dumps(body).encode())
    assert code == "invalid_input"
    assert message.startswith(place)
    assert hint in message + said


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"{", "no JSON"),
        (b"{} {}", "trailing"),
        (b"\xff", "no JSON"),
        (b'{"title": "\xed\xa0\x80"}', "no JSON"),
        (b"\xef\xbb\xbf{}", "no JSON"),
        (b'{"title": NaN}', "no JSON"),
        (rb'{"title": "\ud800"}', "half a surrogate pair"),
        (rb'{"title": "a", "metadata": {"k": "\udfff"}}', "half a surrogate pair"),
        (b'{"title": "a", "title": "b"}', 'key "title" is there twice'),
        (b'{"title": "a", "metadata": {"deep": [{"k": 1, "k": 1}]}}', 'key "k" is there twice'),
        (b'{"title": "a", "metadata": ' + b'{"a":' * 100_000, "no JSON|too deeply"),
        (b'{"title": "a", "metadata": {"k": ' + b"[" * 5000 + b"]" * 5000 + b"}}", "too deeply"),
        (b'{"title": "a", "metadata": {"k": 1e999}}', "out of range"),
        (b'{"title": "a", "metadata": {"k": ' + b"9" * 10_000 + b"}}", "out of range"),
    ],
)
def test_what_is_no_good_json_is_said_to_be_none(body: bytes, words: str) -> None:
    code, message, hint = refused(body)
    assert code == "invalid_input"
    assert any(word in message for word in words.split("|")), message
    assert hint


def test_depth_is_bounded_where_nothing_else_bounds_it() -> None:
    def nested(levels: int) -> bytes:
        return b'{"title": "a", "metadata": ' + b'{"k":' * levels + b"1" + b"}" * levels + b"}"

    assert read(nested(DEPTH - 1), SUBMISSION).title == "a"
    assert "too deeply" in refused(nested(DEPTH))[1]
    mixed = b'{"title": "a", "metadata": ' + b'{"k":[[' * 40 + b"1" + b"]]}" * 40 + b"}"
    assert "too deeply" in refused(mixed)[1]


def test_data_may_hold_what_text_may_not() -> None:
    body = {"agent_session": "s", "fence": 1, "offset": 0, "text": "\x00\x1b[31m\r\n\x7f"}
    assert read(json.dumps(body).encode(), wire.LogRequest).text == body["text"]
    said = {"agent_session": "s", "fence": 1, "message": "\x1b[31mred\x00", "result": {"\x00": "\x1b", "n": 10**30}}
    done = read(json.dumps(said).encode(), wire.CompleteRequest)
    assert (done.message, done.result) == (said["message"], said["result"])
    task = {"title": "a", "content": "tab\there\r\nand there\n", "metadata": {"k": "\x1b"}}
    assert read(json.dumps(task).encode(), SUBMISSION).content == task["content"]


def test_text_that_no_field_could_hold_is_too_large() -> None:
    for body, wanted in (
        ({"title": "a", "content": "x" * 1_000_001}, SUBMISSION),
        ({"agent_session": "s", "fence": 1, "offset": 0, "text": "x" * 1_000_001}, wire.LogRequest),
        ({"agent_session": "s", "fence": 1, "question": "x" * 100_001}, wire.BlockRequest),
    ):
        assert refused(json.dumps(body).encode(), wanted)[0] == "too_large"


async def test_places_that_are_not_there(site: Any) -> None:
    fault = fault_of(await site.client.get("/api/workflow-run"), 404, "not_found")
    assert "/api/workflow-run" in fault["message"]
    assert "did you mean /api/workflow-runs?" in fault["hint"]
    fault = fault_of(await site.client.get("/api/%1b%5b31m"), 404, "not_found")
    assert "\x1b" not in fault["message"]
    for path in ("/", "/api", "/api/workflow-runs/1/nope", "/api/../etc/passwd", "/%00"):
        fault_of(await site.client.get(path), 404, "not_found")
    for ref in ("999", "nosuch", "%00", "%ff", "%2523", "1%0a2"):
        fault_of(await site.client.get(f"{RUNS}/{ref}"), 404, "not_found")


async def test_methods_that_are_not_taken(site: Any) -> None:
    for method, path, allowed in (
        ("PATCH", RUNS, "GET, HEAD, OPTIONS, POST"),
        ("DELETE", f"{RUNS}/1", "GET, HEAD, OPTIONS"),
        ("GET", f"{RUNS}/1/claim", "OPTIONS, POST"),
        ("PROPFIND", "/api/routing/x", "DELETE, GET, HEAD, OPTIONS, PUT"),
        ("TRACE", "/healthz", "GET, HEAD, OPTIONS"),
    ):
        answer = await site.client.request(method, path)
        fault = fault_of(answer, 405, "method_not_allowed")
        assert (answer.headers["allow"], fault["hint"]) == (allowed, f"allowed: {allowed}")
        options = await site.client.request("OPTIONS", path)
        assert (options.status_code, options.headers["allow"], options.content) == (204, allowed, b"")


async def test_head_is_get_without_a_body(site: Any) -> None:
    for path in ("/healthz", RUNS, "/api/events", "/openapi.json"):
        answer = await site.client.head(path)
        assert (answer.status_code, answer.content) == (200, b""), path
    assert (await site.client.head("/nope")).status_code == 404


async def test_query_parameters_that_nobody_looks_at(site: Any) -> None:
    fault = fault_of(await site.client.get(f"{RUNS}?limt=5"), 422, "invalid_input")
    assert (fault["hint"], fault["details"]) == ("did you mean limit?", {"parameter": "limt"})
    fault = fault_of(await site.client.get("/api/limits?x=1"), 422, "invalid_input")
    assert fault["hint"] == "this path takes none"
    fault = fault_of(await site.client.get(f"{RUNS}?limit=5&limit=6"), 422, "invalid_input")
    assert "twice" in fault["message"]
    fault_of(await site.client.post(f"{RUNS}?x=1", json={"title": "a"}), 422, "invalid_input")
    assert (await site.get(RUNS))["runs"] == []
    assert (await site.client.get(f"{RUNS}?status=queued&status=running")).status_code == 200


async def test_parameters_out_of_bounds(site: Any) -> None:
    for path, place, hint in (
        (f"{RUNS}?limit=0", "limit: it has to be >= 1", "range"),
        (f"{RUNS}?limit=1.5", "limit: int is expected", "openapi"),
        (f"{RUNS}?limit=", "limit: it has no value", "leave it out"),
        (f"{RUNS}?status=queed", "status:", "did you mean queued?"),
        (f"{RUNS}?status=zzz", "status:", "one of: queued, dispatched"),
        (f"{RUNS}?cursor=x", "cursor:", "openapi"),
        (f"{RUNS}?cursor=999999999999999999999999", "cursor:", "openapi"),
        (f"{RUNS}?tag=" + "x" * 201, "tag: it is too long", "shorten"),
        (f"{RUNS}/pending?wait=61", "wait: it has to be <= 60", "range"),
        (f"{RUNS}/pending?wait=nan", "wait:", ""),
        (f"{RUNS}/pending?" + "&".join(["types=x"] * 101), "types: it is too long: at most 100", "shorten"),
        (f"{RUNS}/1/events?after=-1", "after: it has to be >= 0", "range"),
        (f"{RUNS}/1/events?after=9999999999999999999", "after:", "range"),
        (f"{RUNS}/{'x' * 101}", "ref: it is too long", "shorten"),
        (f"{RUNS}/dispatcher/stats?window_seconds=0", "window_seconds:", "range"),
    ):
        fault = fault_of(await site.client.get(path), 422, "invalid_input")
        assert fault["message"].startswith(place), (path, fault)
        assert hint in str(fault["hint"]), (path, fault)
    for seen in ("x", "-1", "99999999999999999999"):
        fault = fault_of(await site.client.get("/api/events", headers={"Last-Event-ID": seen}), 422, "invalid_input")
        assert fault["message"].startswith("Last-Event-ID:")
    many = await site.client.post(RUNS, json={"title": "a"}, headers={"Idempotency-Key": "k" * 201})
    assert fault_of(many, 422, "invalid_input")["message"].startswith("Idempotency-Key:")


async def test_bodies_that_are_not_there_or_of_another_kind(site: Any) -> None:
    client = site.client
    fault = fault_of(await client.post(RUNS), 422, "invalid_input")
    assert "needs a body" in fault["message"]
    assert "title" in fault["hint"]
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "", "json"):
        answer = await client.post(RUNS, content=b'{"title": "a"}', headers={"Content-Type": kind})
        fault = fault_of(answer, 415, "invalid_input")
        assert "Content-Type: application/json" in fault["hint"]
    for headers in (
        {"Content-Type": "application/json; charset=latin-1"},
        {"Content-Type": "application/json", "Content-Encoding": "gzip"},
    ):
        fault_of(await client.post(RUNS, content=b'{"title": "a"}', headers=headers), 415, "invalid_input")
    assert (await site.get(RUNS))["runs"] == []
    for kind in ("application/json", "APPLICATION/JSON; charset=UTF-8", "application/vnd.x+json", None):
        headers = {} if kind is None else {"Content-Type": kind}
        answer = await client.post(RUNS, content=b'{"title": "a"}', headers=headers)
        assert answer.status_code == 201, answer.text
    null = await client.post("/api/dispatcher/pause", content=b"null", headers={"Content-Type": "application/json"})
    fault_of(null, 422, "invalid_input")
    # Nothing is asked of a request that brings nothing.
    assert (await client.post("/api/dispatcher/pause")).status_code == 200
    assert (await client.post("/api/dispatcher/resume")).status_code == 200


async def test_a_body_that_is_too_large(site: Any) -> None:
    large = b'{"title": "' + b"x" * (4 * 1024 * 1024) + b'"}'

    async def chunks() -> Any:
        for at in range(0, len(large), 65536):
            yield large[at : at + 65536]

    for content in (large, chunks()):
        answer = await site.client.post(RUNS, content=content, headers={"Content-Type": "application/json"})
        fault = fault_of(answer, 413, "too_large")
        assert "4194304 bytes" in fault["message"]
    assert (await site.get(RUNS))["runs"] == [], "and the connection goes on"


async def test_a_log_entry_that_is_too_large(site: Any) -> None:
    run, under = await site.claimed()
    await site.refused(
        f"/{run.number}/log", {**under, "offset": 0, "text": "x" * 1_000_001}, status=413, code="too_large"
    )
    assert (await site.post(f"/{run.number}/log", {**under, "offset": 0, "text": "x" * 1_000_000}))["size"] == 1_000_000


async def test_what_agents_say_is_stored_as_it_came(site: Any) -> None:
    run, under = await site.claimed(content="line\n\ttab")
    words, result = "\x1b[31mred\x00\u202e", {"\x00": ["\x1b", "\u2028"], "n": 10**25}
    await site.post(f"/{run.number}/complete", {**under, "message": words, "result": result})
    raw = await site.client.get(f"{RUNS}/{run.number}")
    assert raw.json()["run"]["message"] == words
    assert raw.json()["run"]["result"] == result
    assert b"\x1b" not in raw.content
    assert b"\x00" not in raw.content
    events = (await site.get(f"{RUNS}/{run.number}/events"))["events"]
    assert events[-1]["event"] == "complete"


async def test_a_fault_of_ours_is_an_envelope_that_tells_nothing(site: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(*_: Any) -> None:
        raise ValueError("the secret of the house")

    monkeypatch.setattr(site.gateway.desk, "limits", broken)
    answer = await site.client.get("/api/limits")
    fault_of(answer, 500, "internal")
    assert "secret" not in answer.text
    monkeypatch.setattr(site.gateway, "_token_of", broken)
    assert (await site.get("/healthz"))["status"] == "alive"
