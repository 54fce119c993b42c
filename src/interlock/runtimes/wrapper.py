"""The small shell program that stands between Interlock and an agent, and the two files that it writes.

It is started as the leader of a session of its own, with the attempt's lock inherited from the launcher. It leaves
(status 125, nothing started) when the folder is void; writes who it is; joins the cgroup; runs the agent as its
child; writes the agent's exit status. It holds the lock until it ends, whatever the agent does with its descriptors.

* It is POSIX sh and forks nothing but the agent: everything else is builtin. A Python wrapper would cost 9 ms.
* Its signal handlers do nothing, but they are handlers: an *ignored* signal would be inherited by the agent.
  A service manager that signals the whole group so still gets an exit status from an agent that obeys.
* Both files count only when they end in a newline. When the identity cannot be written (disk full) no agent starts;
  when the exit status cannot be, there is none, and the attempt counts as lost.
* When the cgroup cannot be joined, its name in the lock file is wiped, and the tree is held by the other means.
* 126 and 127 are the shell's: the program could not be executed, or was gone. 128 + n: it died of signal n.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from interlock.domain.attempt_files import AttemptFiles
from interlock.domain.run import ProcessIdentity
from interlock.runtimes import process

NOT_RUN = 125
"""The wrapper's own status when it started nothing."""

# The names are long because a variable of the agent's environment with the same name would be changed by them.
SCRIPT = """\
trap : HUP INT QUIT TERM
[ ! -e "$2" ] || exit 125
IFS= read -r interlock_stat </proc/self/stat && printf '%s\\n' "$1 $interlock_stat" >"$3" || exit 125
if [ -n "$5" ]; then { echo 0 >"$5/cgroup.procs"; } 2>/dev/null || : >"$6" || exit 125; fi
if [ -n "$7" ]; then ulimit -S -n "$7" 2>/dev/null; fi
interlock_exit=$4
shift 7
"$@"
interlock_status=$?
echo "$interlock_status" >"$interlock_exit"
exit "$interlock_status"
"""


class InProcess(msgspec.Struct, frozen=True):
    """In place of a wrapper's identity: the agent is a function, in an interpreter that is nobody's to kill."""

    interpreter: ProcessIdentity


def wrapper_argv(
    files: AttemptFiles, program: list[str], *, cgroup: str | None = None, soft_fd_limit: int | None = None
) -> list[str]:
    """The command that runs ``program`` (its first word holds a slash: a bare one could be a builtin)."""
    return [
        "/bin/sh",
        "-c",
        SCRIPT,
        "interlock",
        f"{process.boot_id()} {process.pid_namespace()}",
        str(files.void),
        str(files.identity),
        str(files.exit),
        cgroup or "",
        str(files.lock),
        "" if soft_fd_limit is None else str(soft_fd_limit),
        *program,
    ]


def read_line(path: Path) -> bytes | None:
    """A file's content without its final newline; None when it is missing or not (yet) complete."""
    try:
        # an agent can put a pipe in its place: to open or read that would wait for ever
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    try:
        content = os.read(fd, 4096)
    finally:
        os.close(fd)
    return content[:-1] if content.endswith(b"\n") else None


def read_exit(files: AttemptFiles) -> int | None:
    """The agent's exit status, 0..255; None when it left none."""
    line = read_line(files.exit)
    if line is None or not line.isdigit() or len(line) > 3:
        return None
    status = int(line)
    # For signal n most shells say 128 + n, ksh93 says 256 + n, yash 384 + n.
    return status if status < 256 else 128 + status % 128


def read_identity(files: AttemptFiles) -> ProcessIdentity | InProcess | None:
    """Who runs, or ran, in this folder; None when nobody wrote so (completely), and then no agent was started."""
    line = read_line(files.identity)
    if line is None:
        return None
    words = line.split(b" ", 2)
    function = words[0] == b"function"
    if function:
        words = line.split(b" ", 3)[1:]
    try:
        boot, namespace, raw = words
        stat = process.parse_stat(raw)
    except ValueError:
        return None
    identity = ProcessIdentity(
        boot_id=boot.decode(), pid_namespace=namespace.decode(), pid=stat.pid, start_ticks=stat.start_ticks
    )
    return InProcess(identity) if function else identity


def write_in_process_mark(files: AttemptFiles) -> None:
    """The counterpart of the wrapper's identity for an agent inside this process. Raises OSError."""
    stat = Path("/proc/self/stat").read_bytes().rstrip(b"\n")
    line = b"function %s %s %s\n" % (process.boot_id().encode(), process.pid_namespace().encode(), stat)
    files.identity.write_bytes(line)
