"""Tokens and templates on the command line."""

from __future__ import annotations

import json
from typing import Any


def test_the_secret_is_alone_on_standard_output(yard: Any) -> None:
    made = yard.interlock("token", "create", "laptop", "--scope", "operator")
    assert made.returncode == 0, made.stderr
    secret = made.stdout.strip()
    assert made.stdout == f"{secret}\n"
    assert secret.startswith("ilk_")
    assert " " not in secret
    assert secret not in made.stderr
    assert "not shown again" in made.stderr
    for options in ((), ("--json",)):
        listed = yard.interlock("token", "list", *options)
        assert "laptop" in listed.stdout
        assert "operator" in listed.stdout
        assert secret not in listed.stdout
    assert secret[4:16].encode() not in b"".join(
        path.read_bytes() for path in (yard.folder / ".interlock").rglob("*") if path.is_file()
    )


def test_a_token_is_made_once_and_revoked(yard: Any) -> None:
    assert yard.interlock("token", "create", "ci").returncode == 0
    again = yard.interlock("token", "create", "ci")
    assert (again.returncode, again.stdout) == (4, "")
    assert "interlock token revoke ci" in again.stderr
    assert json.loads(yard.interlock("token", "list", "--json").stdout)[0]["scope"] == "agent"
    assert yard.interlock("token", "revoke", "ci").returncode == 0
    assert yard.interlock("token", "revoke", "ci").returncode == 3
    assert "No tokens" in yard.interlock("token", "list").stdout
    assert yard.interlock("token", "create", "x", "--scope", "root").returncode == 2
    assert yard.interlock("token", "create", " ").returncode == 2


def test_the_way_of_a_template(yard: Any) -> None:
    yard.write("interlock.yaml", "templates:\n  fixed:\n    title: Fixed ${x}\n")
    yard.write("review.yaml", "title: Review ${branch}\nworkflow_type: review\ntags: [review]\n")
    made = yard.interlock("template", "set", "review", "review.yaml")
    assert (made.returncode, made.stdout) == (0, "Template 'review' is kept; it asks for: branch.\n"), made.stderr
    shown = yard.interlock("template", "show", "review").stdout
    assert json.loads(shown) == {"title": "Review ${branch}", "workflow_type": "review", "tags": ["review"]}
    assert yard.interlock("template", "set", "same", "-", stdin=shown).returncode == 0
    listed = json.loads(yard.interlock("template", "list", "--json").stdout)
    assert [(one["name"], one["configured"]) for one in listed] == [
        ("fixed", True),
        ("review", False),
        ("same", False),
    ]
    table = yard.interlock("template", "list").stdout
    assert "interlock.yaml" in table
    assert "Review ${branch}" in table
    assert yard.interlock("template", "set", "fixed", "review.yaml").returncode == 4
    assert yard.interlock("template", "rm", "same").returncode == 0
    assert yard.interlock("template", "rm", "same").returncode == 3
    assert yard.interlock("template", "show", "same").returncode == 3


def test_what_is_no_template_is_said_with_its_place(yard: Any) -> None:
    for text, words in (
        ("titel: x\n", "did you mean title?"),
        ("title: ${\n", "there is a $"),
        ("- a\n", "a mapping is expected"),
        ("", "is empty"),
        ("title: [\n", "t.yaml:"),
    ):
        yard.write("t.yaml", text)
        refused = yard.interlock("template", "set", "t", "t.yaml")
        assert (refused.returncode, refused.stdout) == (2, ""), text
        assert words in refused.stderr, text
        assert "Traceback" not in refused.stderr
    yard.write("interlock.yaml", "templates:\n  good: { title: x }\n  bad: { titel: y }\n")
    refused = yard.interlock("config", "check")
    assert refused.returncode == 2
    assert "interlock.yaml:3" in refused.stderr
    assert "did you mean title?" in refused.stderr
