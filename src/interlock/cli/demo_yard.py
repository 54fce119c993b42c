"""The yard of `interlock demo`: a small shop's files under git, an agent that is one shell script, and a backlog of real work."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import NamedTuple

from interlock.domain.places import CONFIG_FILE

AGENT = """\
#!/bin/sh
# The agent of this demo. An agent is any program; Interlock calls it once for every attempt at a task:
#
#   standard input          the prompt: title, content, what earlier attempts came to ($INTERLOCK_PROMPT_FILE has it too)
#   standard output, error  the log (`interlock logs '#7'`)
#   exit status             0: done. 75: not now, later. Anything else: failed, and tried again
#   $INTERLOCK_RESULT_FILE  where it may say more, as JSON: {"message": "12 words", "permanent": false}
#   $INTERLOCK_RUN_NUMBER, $INTERLOCK_ATTEMPT   which run this is, and the how-manieth attempt
#
# Where this one runs the ```sh part of the prompt, a real one would be `claude -p`, `codex exec -`, or a script of yours.
set -eu
script=$(sed -n '/^```sh$/,/^```$/p' | sed '1d;$d')
echo "run $INTERLOCK_RUN_NUMBER, attempt $INTERLOCK_ATTEMPT"
exec sh -euc "$script"
"""

CONFIG = """\
# What `interlock demo` runs with. `interlock config check` reads it; `interlock limits` shows it in use.
version: 1
dispatch:
  concurrency:
    global: 4
    perTag: { gpu: 1 }       # tasks with this tag run one at a time
  retry: { maxRetries: 2, baseDelayMs: 400, maxDelayMs: 1000 }
  defaultAgent: worker
  timeout: 30s
  stopGrace: 2s
agents:
  worker: [sh, agent.sh]
"""

FILES = {
    "shop/pricing.py": """\
\"\"\"Prices in cents.\"\"\"

VAT_PERCENT = 19


def gross(net: int) -> int:
    # TODO: round half to even, as the tax office wants it
    return net + net * VAT_PERCENT // 100
""",
    "shop/stock.py": """\
\"\"\"What is on the shelves.\"\"\"


def low(stock: dict[str, int], least: int = 5) -> list[str]:
    # TODO: take the delivery time into account
    return sorted(name for name, left in stock.items() if left < least)
""",
    "shop/report.py": """\
\"\"\"Figures of the month.\"\"\"


def total(rows: list[tuple[str, int, int]]) -> int:
    return sum(count * price for _, count, price in rows)
""",
    "shop/legacy.py": """\
# Written for Python 2, and nobody dared to touch it since.
def show(rows):
    for row in rows:
        print row
""",
    "data/orders.csv": "\n".join(
        ["order,item,count,cents"]
        + [
            f"{1000 + n},{('lamp', 'chair', 'table', 'rug')[n % 4]},{n % 5 + 1},{900 + 37 * n % 800}"
            for n in range(400)
        ]
    )
    + "\n",
    "data/customers.csv": "\n".join(
        ["id,name,city"]
        + [f"{n},Customer {n % 90},{('Ulm', 'Bern', 'Graz', 'Lyon', 'Oslo')[n * 7 % 5]}" for n in range(120)]
    )
    + "\n",
    "docs/handbook.md": "# Handbook\n\n"
    + "\n\n".join(f"## Chapter {n}\n\nThe quick brown fox jumps over the lazy dog number {n}." for n in range(1, 30))
    + "\n",
    "docs/letter.txt": "Dear customer,\n\nyour lamp is on its way. Please recieve it with care.\n\nThe shop\n",
}


class Job(NamedTuple):
    """A task of the demo and the state that it is to end in. ``git``: not there without git."""

    id: str
    title: str
    script: str
    fields: str = ""
    ends: str = "completed"
    git: bool = False


JOBS = (
    Job("words", "Count the words of the handbook", "wc -w shop/docs/handbook.md | tee out/words.txt"),
    Job(
        "headings",
        "List the handbook's chapters",
        "grep '^## ' shop/docs/handbook.md > out/headings.txt; wc -l out/headings.txt",
    ),
    Job(
        "revenue",
        "Sum up the orders",
        "sleep 1.2\nawk -F, 'NR > 1 { cents += $3 * $4 } END { printf \"%.2f\\n\", cents / 100 }' shop/data/orders.csv\\\n"
        "  | tee out/revenue.txt",
        "priority: 9",
    ),
    Job(
        "best",
        "Find the best-selling item",
        "sleep 0.9\nawk -F, 'NR > 1 { sold[$2] += $3 } END { for (i in sold) print sold[i], i }' shop/data/orders.csv |\n"
        "  sort -rn | head -n 1 | tee out/best.txt",
        "priority: 9",
    ),
    Job(
        "cities",
        "Count customers by city",
        "sed 1d shop/data/customers.csv | cut -d, -f3 | sort | uniq -c | tee out/cities.txt",
    ),
    Job(
        "doubles",
        "Look for customers who are there twice",
        "cut -d, -f2 shop/data/customers.csv | sort | uniq -d > out/doubles.txt",
    ),
    Job(
        "compile-pricing",
        "Check that pricing.py compiles",
        "python3 -IS -m py_compile shop/shop/pricing.py && echo it compiles",
    ),
    Job(
        "compile-stock",
        "Check that stock.py compiles",
        "python3 -IS -m py_compile shop/shop/stock.py && echo it compiles",
    ),
    Job(
        "compile-legacy",
        "Check that legacy.py compiles",
        "python3 -IS -m py_compile shop/shop/legacy.py",
        "priority: 8",
        ends="failed",
    ),
    Job("todos", "Collect the TODOs", "sleep 0.6\ngrep -rn TODO shop/shop | tee out/todos.txt"),
    Job(
        "spelling",
        "Correct a letter",
        "sed 's/recieve/receive/' shop/docs/letter.txt > out/letter.txt; diff shop/docs/letter.txt out/letter.txt || :",
    ),
    Job(
        "sort",
        "Sort the orders by value",
        "sleep 1.4\nsed 1d shop/data/orders.csv | sort -t, -k4,4nr > out/sorted.csv; head -n 1 out/sorted.csv",
    ),
    Job(
        "checksums",
        "Write checksums of all files",
        "sleep 0.7\nfind shop -type f ! -path '*/.git/*' -exec cksum {} + | sort > out/checksums.txt; wc -l out/checksums.txt",
    ),
    Job("archive", "Pack the documents", "sleep 0.9\ntar -czf out/docs.tar.gz shop/docs && ls out/docs.tar.gz"),
    Job("log", "Summarise the history", "sleep 0.8\ngit -C shop log --format='%h %s' | tee out/log.txt", git=True),
    Job(
        "authors",
        "Count commits by author",
        "git -C shop log --format=%an | sort | uniq -c | tee out/authors.txt",
        git=True,
    ),
    Job(
        "changed",
        "See what the last commit changed",
        "git -C shop show --stat --format=%s HEAD | tee out/changed.txt",
        git=True,
    ),
    Job(
        "fetch",
        "Fetch the rates (the connection fails at first)",
        'if [ "$INTERLOCK_ATTEMPT" = 1 ]; then echo "connection reset by peer" >&2; exit 1; fi\n'
        "echo 'EUR 1.00 CHF 0.94' | tee out/rates.txt",
    ),
    Job(
        "lint",
        "Check the layout (flaky: passes at the second try)",
        'if [ "$INTERLOCK_ATTEMPT" = 1 ]; then echo "checker crashed" >&2; exit 3; fi\n'
        "awk 'length > 100 { bad = 1 } END { exit bad }' shop/shop/*.py && echo no line is too long",
    ),
    Job(
        "hang",
        "Wait for an answer that never comes",
        "echo waiting for 192.0.2.1\nsleep 600",
        "timeout: 2s",
        ends="timed_out",
    ),
    *(
        Job(
            f"gpu-{size}",
            f"Draw the {size} picture (needs the GPU)",
            f"for part in 1 2 3 4 5 6 7 8; do echo rendering part $part of 8; sleep 0.25; done\n"
            f"cksum shop/docs/letter.txt > out/picture-{size}.txt",
            "tags: [gpu]\n  priority: 6",
        )
        for size in ("small", "large", "huge")
    ),
    Job(
        "report",
        "Write the report from the others' results",
        '{\n  echo \'# The month\'\n  echo\n  echo "Revenue: $(cat out/revenue.txt)"\n  echo "Best seller: $(cat out/best.txt)"\n'
        '  echo "Rates: $(cat out/rates.txt)"\n} > out/report.md\ncat out/report.md',
        "needs: [revenue, best, fetch]",
    ),
    Job(
        "publish",
        "Publish the report",
        "mkdir -p out/public && cp out/report.md out/public/ && ls out/public",
        "needs: [report]",
    ),
)


def make_yard(folder: Path, *, git: bool) -> tuple[Job, ...]:
    """Write everything below ``folder``; the jobs of its backlog. ``git`` False leaves out what needs it."""
    jobs = tuple(job for job in JOBS if git or not job.git)
    (folder / "out").mkdir()
    for name, text in FILES.items():
        path = folder / "shop" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    (folder / "agent.sh").write_text(AGENT, "utf-8")
    (folder / "agent.sh").chmod(0o755)
    (folder / CONFIG_FILE).write_text(CONFIG, "utf-8")
    (folder / "backlog.yaml").write_text(backlog_text(jobs), "utf-8")
    if git:
        _make_repository(folder / "shop")
    return jobs


def backlog_text(jobs: tuple[Job, ...]) -> str:
    """The backlog as a person would write it."""
    parts = [
        "# A backlog: one entry a task. `interlock run backlog.yaml` does them; doing it again does what is left.\n"
    ]
    for job in jobs:
        lines = [f"- id: {job.id}", f"  title: {job.title}" if ":" not in job.title else f"  title: '{job.title}'"]
        if job.fields:
            lines.append(f"  {job.fields}")
        lines += ["  content: |", "    ```sh", *(f"    {line}" for line in job.script.split("\n")), "    ```", ""]
        parts.append("\n".join(lines))
    return "\n".join(parts)


def _make_repository(folder: Path) -> None:
    """Three commits of different people. Nothing of the user's own git configuration is used or changed."""
    config = ("-c", "commit.gpgsign=false", "-c", "core.hooksPath=/dev/null", "-c", "init.defaultBranch=main")

    def git(*arguments: str, who: str = "Ada") -> None:
        person = ("-c", f"user.name={who}", "-c", f"user.email={who.lower()}@shop.example")
        subprocess.run(["git", *config, *person, *arguments], cwd=folder, check=True, capture_output=True, timeout=30)

    git("init", "--quiet")
    for message, paths, who in (
        ("Open the shop", ["shop"], "Ada"),
        ("Take over the old orders", ["data"], "Grace"),
        ("Write the handbook", ["docs"], "Ada"),
    ):
        git("add", *paths)
        git("commit", "--quiet", "-m", message, who=who)
