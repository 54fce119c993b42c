"""`interlock run`: from a backlog to its end, and again."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from typing import Any

# What a task is called goes into the file `did`, once for every time that it is done.
NOTE = "head -n 1 | sed 's/^# //' >> did"
THREE = "- [ ] one\n- [ ] two\n- [ ] three\n"


def test_a_backlog_is_run_to_its_end(yard: Any) -> None:
    yard.write("todo.md", THREE)
    done = yard.interlock("run", "todo.md", "--agent", NOTE, "--concurrency", "1")
    assert done.returncode == 0, done.stderr
    assert yard.did() == ["one", "two", "three"]
    assert "todo.md: 3 tasks: 3 new" in done.stderr
    lines = done.stdout.splitlines()
    assert [line.split()[2] for line in lines[:6]] == ["started", "completed"] * 3
    assert "3 tasks: 3 completed" in done.stdout


def test_again_it_has_nothing_to_do(yard: Any) -> None:
    yard.write("todo.md", THREE)
    yard.interlock("run", "todo.md", "--agent", NOTE)
    done = yard.interlock("run", "todo.md", "--agent", NOTE)
    assert done.returncode == 0
    assert "3 done before (skipped)" in done.stderr
    assert sorted(yard.did()) == ["one", "three", "two"]


def test_a_task_that_is_added_is_the_only_one_that_runs(yard: Any) -> None:
    yard.write("todo.md", THREE)
    yard.interlock("run", "todo.md", "--agent", NOTE)
    yard.write("todo.md", f"- [ ] zero\n{THREE}")
    assert yard.interlock("run", "todo.md", "--agent", NOTE).returncode == 0
    assert yard.did()[3:] == ["zero"]


def test_again_runs_everything_anew(yard: Any) -> None:
    yard.write("todo.md", THREE)
    yard.interlock("run", "todo.md", "--agent", NOTE)
    done = yard.interlock("run", "todo.md", "--agent", NOTE, "--again")
    assert done.returncode == 0
    assert "3 run again" in done.stderr
    assert len(yard.did()) == 6


def test_a_failed_task_is_named_and_runs_again_when_asked_to(yard: Any) -> None:
    yard.write("todo.md", THREE)
    agent = "read -r line; [ -e mended ] || [ \"$line\" != '# two' ] || exit 7"
    command = ("run", "todo.md", "--agent", agent, "--max-retries", "0")
    first = yard.interlock(*command)
    assert first.returncode == 1
    assert "exited with status 7" in first.stdout
    assert "interlock logs '#2'" in first.stdout
    assert "--retry-failed" in first.stdout
    second = yard.interlock(*command)
    assert second.returncode == 1
    assert "failed before: #2 two" in second.stderr
    assert len(yard.runs()) == 3
    yard.write("mended", "")
    third = yard.interlock(*command, "--retry-failed")
    assert third.returncode == 0, third.stdout
    assert [run["retry_of"] for run in yard.runs()] == [None, None, None, 2]
    assert yard.interlock(*command).returncode == 0


def test_a_task_that_changed_since_it_was_done_is_named_and_not_run(yard: Any) -> None:
    yard.write("tasks.yaml", "- {id: a, title: one}\n- {id: b, title: two}\n")
    yard.interlock("run", "tasks.yaml", "--agent", NOTE)
    yard.write("tasks.yaml", "- {id: a, title: one}\n- {id: b, title: two and a half}\n")
    done = yard.interlock("run", "tasks.yaml", "--agent", NOTE)
    assert "1 changed since it was done (not run)" in done.stderr
    assert "changed since done: #2 two" in done.stderr
    assert done.returncode == 0
    assert sorted(yard.did()) == ["one", "two"]


def test_retries_are_made_as_often_as_allowed(yard: Any) -> None:
    yard.write("interlock.yaml", "dispatch: {retry: {baseDelayMs: 10, maxDelayMs: 20}}\n")
    yard.write("todo.md", "- [ ] one\n")
    done = yard.interlock("run", "todo.md", "--agent", "echo x >> tries; exit 3", "--max-retries", "2")
    assert done.returncode == 1
    assert yard.read("tries") == "x\n" * 3
    assert "given up after 3 tries" in done.stdout


def test_a_task_that_takes_too_long_is_timed_out(yard: Any) -> None:
    yard.write("todo.md", "- [ ] one\n")
    data = yard.summary("todo.md", "--agent", "sleep 600", "--timeout", "300ms")
    assert data["states"] == {"timed_out": 1}
    assert data["exit_status"] == 1
    assert not yard.agents_alive()


def test_needs_are_kept_and_a_failed_need_ends_what_needs_it(yard: Any) -> None:
    yard.write(
        "tasks.yaml",
        "- {id: c, title: c, needs: [b]}\n- {id: b, title: b, needs: [a]}\n- {id: a, title: a}\n"
        "- {id: bad, title: bad}\n- {id: after, title: after, needs: [bad]}\n",
    )
    agent = "read -r _ name; echo $name >> did; [ $name != bad ]"
    data = yard.summary("tasks.yaml", "--agent", agent, "--max-retries", "0", "--concurrency", "1")
    assert data["states"] == {"completed": 3, "failed": 2}
    assert [name for name in yard.did() if name != "bad"] == ["a", "b", "c"]


def test_the_limit_of_concurrency_holds(yard: Any) -> None:
    yard.write("todo.md", "".join(f"- [ ] task {n}\n" for n in range(12)))
    agent = "mkdir -p busy; touch busy/$$; ls busy | wc -l >> most; sleep 0.05; rm busy/$$"
    assert yard.interlock("run", "todo.md", "--agent", agent, "-j", "3").returncode == 0
    assert max(int(line) for line in yard.read("most").split()) <= 3


def test_standard_input_and_formats(yard: Any) -> None:
    lines = '{"id": "x", "title": "from x"}\n{"id": "y", "title": "from y"}\n'
    done = yard.interlock("run", "-", "--format", "jsonl", "--agent", NOTE, stdin=lines)
    assert done.returncode == 0, done.stderr
    assert sorted(yard.did()) == ["from x", "from y"]
    again = yard.interlock("run", "-", "--agent", NOTE, stdin=lines)
    assert "2 done before (skipped)" in again.stderr
    assert {run["batch"] for run in yard.runs()} == {"-"}


def test_a_batch_is_known_by_its_path_from_the_data_folder(yard: Any) -> None:
    (yard.folder / "sub").mkdir()
    yard.write("sub/todo.md", THREE)
    yard.interlock("run", "sub/todo.md", "--agent", NOTE)
    yard.interlock("run", f"{yard.folder}/sub/../sub/todo.md", "--agent", NOTE)
    assert {run["batch"] for run in yard.runs()} == {"sub/todo.md"}
    assert len(yard.did()) == 3


def test_a_fault_in_the_backlog_is_told_and_nothing_is_made(yard: Any) -> None:
    yard.write("tasks.yaml", "- title: one\n- title: two\n  timeout: 90\n")
    done = yard.interlock("run", "tasks.yaml", "--agent", NOTE)
    assert done.returncode == 2
    assert "tasks.yaml:3: tasks[1].timeout: " in done.stderr
    assert not (yard.folder / ".interlock").exists()


def test_an_agent_that_is_not_there_is_an_error_at_once(yard: Any) -> None:
    yard.write("todo.md", THREE)
    done = yard.interlock("run", "todo.md", "--agent", "no-such-agent --please")
    assert done.returncode == 2
    assert "no-such-agent" in done.stderr
    assert "Traceback" not in done.stderr
    assert not yard.runs()


def test_without_any_agent_nothing_is_queued(yard: Any) -> None:
    yard.write("todo.md", THREE)
    done = yard.interlock("run", "todo.md")
    assert done.returncode == 2
    assert "--agent" in done.stderr
    assert not yard.runs()


def test_agents_of_the_configuration_do_their_tasks(yard: Any) -> None:
    yard.write(
        "interlock.yaml",
        "dispatch: {defaultAgent: usual}\n"
        "agents: {usual: echo usual >> did, special: echo special >> did}\n"
        "roles: {reviewer: {agent: special}}\n",
    )
    yard.write("tasks.yaml", "- title: one\n- {title: two, role: reviewer}\n- {title: three, agent: special}\n")
    assert yard.interlock("run", "tasks.yaml", "-j", "1").returncode == 0
    assert yard.did() == ["usual", "special", "special"]
    # --agent comes before the default, and after what a task or its role says
    assert yard.interlock("run", "tasks.yaml", "-j", "1", "--again", "--agent", "echo mine >> did").returncode == 0
    assert yard.did()[3:] == ["mine", "special", "special"]
    assert yard.interlock("run", "tasks.yaml", "-j", "1", "--again", "--agent", "special").returncode == 0
    assert yard.did()[6:] == ["special", "special", "special"]


def test_json_is_all_that_is_printed(yard: Any) -> None:
    yard.write("tasks.yaml", "- {id: a, title: one}\n")
    done = yard.interlock("run", "tasks.yaml", "--agent", "echo hello", "--json")
    assert done.returncode == 0, done.stderr
    data = json.loads(done.stdout)
    assert data["ok"]
    assert data["batch"] == "tasks.yaml"
    assert data["runs"][0]["key"] == "id:a"
    assert data["runs"][0]["message"] == "hello"


def test_a_ticked_box_is_not_run(yard: Any) -> None:
    yard.write("todo.md", "- [x] zero\n- [ ] one\n")
    done = yard.interlock("run", "todo.md", "--agent", NOTE)
    assert done.returncode == 0
    assert "1 ticked off" in done.stderr
    assert yard.did() == ["one"]


def test_agents_in_one_git_tree_are_warned_of(yard: Any) -> None:
    (yard.folder / ".git").mkdir()
    (yard.folder / ".git" / "HEAD").write_text("ref: refs/heads/main\n")
    (yard.folder / "deep").mkdir()
    yard.write("deep/todo.md", THREE)
    warned = yard.interlock("run", "deep/todo.md", "--agent", "true")
    assert "index.lock" in warned.stderr
    assert "--concurrency 1" in warned.stderr
    alone = yard.interlock("run", "deep/todo.md", "--agent", "true", "--again", "-j", "1")
    assert "index.lock" not in alone.stderr


def test_a_reader_who_goes_away_stops_nothing(yard: Any) -> None:
    yard.write("todo.md", "".join(f"- [ ] task {n}\n" for n in range(5)))
    process = yard.start("run", "todo.md", "--agent", NOTE, "-j", "1")
    process.stdout.readline()
    process.stdout.close()
    assert process.wait(60) == 0
    assert len(yard.did()) == 5


def test_run_shows_its_help(yard: Any) -> None:
    done = yard.interlock("run", "--help")
    assert done.returncode == 0
    for option in ("--agent", "--concurrency", "--retry-failed", "--again", "--format", "--max-retries", "--timeout"):
        assert option in done.stdout


def test_a_timeout_without_unit_is_refused(yard: Any) -> None:
    yard.write("todo.md", THREE)
    done = yard.interlock("run", "todo.md", "--agent", "true", "--timeout", "90")
    assert done.returncode == 2
    assert "90s" in done.stderr


def test_a_summary_that_cannot_be_kept_is_told(yard: Any) -> None:
    yard.write("todo.md", THREE)
    with open("/dev/full", "w") as full:
        process = subprocess.run(
            [sys.executable, "-m", "interlock", "run", "todo.md", "--agent", NOTE, "--json"],
            cwd=yard.folder,
            env=yard.env,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert process.returncode == 5
    assert "No space left" in process.stderr
    assert len(yard.did()) == 3


def test_two_at_once_share_the_work(yard: Any) -> None:
    yard.write("todo.md", "".join(f"- [ ] task {n}\n" for n in range(40)))
    both = [yard.start("run", "todo.md", "--agent", NOTE, "-j", "3") for _ in range(2)]
    assert [process.wait(60) for process in both] == [0, 0]
    assert len(yard.did()) == len(set(yard.did())) == 40


def test_a_timeout_counts_for_a_configured_agent_too(yard: Any) -> None:
    yard.write("interlock.yaml", "agents: {slow: {command: sleep 60, timeout: 50m}}\n")
    yard.write("t.yaml", "- {title: a, agent: slow}\n- {title: b, agent: slow, timeout: 300ms}\n")
    done = yard.interlock("run", "t.yaml", "--timeout", "400ms")
    assert done.returncode == 1
    assert yard.states() == ["timed_out", "timed_out"]
    assert [json.loads(run["task"])["timeout_ms"] for run in yard.runs()] == [400, 300]


def test_a_timeout_reaches_what_was_queued_before(yard: Any) -> None:
    yard.write("interlock.yaml", "agents: {slow: sleep 60}\n")
    yard.write("t.yaml", "- {title: a, agent: slow, not_before: in 2s}\n")
    process = yard.start("run", "t.yaml")
    yard.until(yard.locks_held, "a dispatcher is up, after the task was queued")
    process.send_signal(signal.SIGINT)
    process.wait(30)
    yard.interlock("run", "t.yaml", "--timeout", "400ms")
    assert yard.states() == ["timed_out"]
