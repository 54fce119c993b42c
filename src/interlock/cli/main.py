"""The command line's frame: the group, and what becomes of everything that goes wrong below it."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import click

from interlock.cli.group import InterlockGroup, global_options
from interlock.cli.session import Session
from interlock.cli.text import plain
from interlock.domain.errors import InterlockError

if TYPE_CHECKING:
    from interlock.cli.host import Host

INTERRUPTED = 130
PIPE_CLOSED = 141
FAULT_OF_OURS = 70
COMPLETION_VARIABLE = "_INTERLOCK_COMPLETE"
CANNOT_WRITE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""A full disk behind `> file`, a terminal that is gone. The store's own troubles come as refusals of their own."""

HELP = """A durable dispatcher for AI agents: point it at a backlog and walk away.

\b
Examples:
  interlock demo
  interlock run backlog.yaml --agent './agent.sh' --concurrency 4
  interlock add 'Fix the parser' && interlock up
  interlock why '#12'

RUN is a number (42 or '#42'), an id, or the beginning of an id that no other run has.
"""


def make_group() -> click.Group:
    """The command ``interlock``."""
    return InterlockGroup(
        "interlock",
        help=HELP,
        params=list(global_options(hidden=False)),
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
        subcommand_metavar="COMMAND [ARGS]...",
        no_args_is_help=True,
    )


def run_command_line(host: Host) -> None:
    """Do what the command line says, and exit with its status."""
    sys.exit(execute(host, sys.argv[1:]))


def execute(host: Host, arguments: Sequence[str]) -> int:
    """Exit status of a call: 0 ok, 1 a run did not complete, 2 usage or config, 3 not found, 4 conflict, 5 unavailable."""
    session = Session(host)
    try:
        status = _execute(session, arguments)
        if sys.stdout is not None:
            sys.stdout.flush()
    except BrokenPipeError:
        return _give_up_stdout()
    except OSError as error:
        # Only the flush is left to fail here: a full disk behind `> file`.
        status = _complain(f"the output cannot be written: {error.strerror}", None, 5)
        _give_up_stdout()
    return status


def _execute(session: Session, arguments: Sequence[str]) -> int:
    for argument in arguments:
        if not _is_text(argument):
            return _complain(f"the argument '{argument}' is not UTF-8 text", "check the terminal's encoding", 2)
    try:
        outcome = _invoke(session, list(arguments))
    except click.exceptions.Exit as ended:
        return ended.exit_code
    except click.exceptions.Abort:
        return INTERRUPTED
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=False)
        return 0 if not arguments else 2
    except click.ClickException as error:
        return _usage(error)
    except BaseException as error:  # noqa: BLE001 - whatever it is, it is answered in words
        return _failed(error, verbose=session.verbose)
    return outcome if isinstance(outcome, int) else 0


def _invoke(session: Session, arguments: list[str]) -> object:
    """What ``click.Group.main`` does, without its own way of printing errors."""
    group = make_group()
    if instruction := os.environ.get(COMPLETION_VARIABLE):
        from click.shell_completion import shell_complete  # noqa: PLC0415

        return shell_complete(group, {"obj": session}, "interlock", COMPLETION_VARIABLE, instruction)
    with group.make_context("interlock", arguments, obj=session) as context:
        return group.invoke(context)


def _is_text(argument: str) -> bool:
    try:
        argument.encode()
    except UnicodeEncodeError:
        return False
    return True


def _usage(error: click.ClickException) -> int:
    hint = None
    if isinstance(error, click.UsageError) and error.ctx is not None:
        hint = f"`{error.ctx.command_path} --help` shows how it is used"
    return _complain(error.format_message(), hint, error.exit_code if error.exit_code > 1 else 2)


def _failed(error: BaseException, *, verbose: bool) -> int:
    leaves = list(_leaves(error))
    refusals = [leaf for leaf in leaves if isinstance(leaf, InterlockError)]
    strangers = [
        leaf
        for leaf in leaves
        if not isinstance(leaf, (InterlockError, KeyboardInterrupt, BrokenPipeError, click.exceptions.Abort))
    ]
    exits = [leaf for leaf in strangers if isinstance(leaf, (SystemExit, click.exceptions.Exit))]
    if exits and len(exits) == len(strangers):
        first = exits[0]
        code = first.exit_code if isinstance(first, click.exceptions.Exit) else first.code
        return code if isinstance(code, int) else 1
    full = next((leaf for leaf in strangers if isinstance(leaf, OSError) and leaf.errno in CANNOT_WRITE), None)
    if full is not None:
        _give_up_stdout()
        return _complain(f"the output cannot be written: {full.strerror}", None, 5)
    if strangers:
        return _fault_of_ours(error, strangers[0], verbose=verbose)
    if refusals:
        return _complain(refusals[0].message, refusals[0].hint, refusals[0].exit_status)
    if any(isinstance(leaf, BrokenPipeError) for leaf in leaves):
        return _give_up_stdout()
    if sys.stderr is not None and sys.stderr.isatty():
        # Below the ^C that the terminal shows.
        click.echo(err=True)
    return INTERRUPTED


def _leaves(error: BaseException) -> Iterator[BaseException]:
    """The errors inside of trio's groups."""
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _leaves(inner)
    else:
        yield error


def _complain(message: str, hint: str | None, status: int) -> int:
    click.echo(f"error: {plain(message, lines=True)}", err=True)
    if hint:
        click.echo(f"hint: {plain(hint, lines=True)}", err=True)
    return status


def _fault_of_ours(error: BaseException, leaf: BaseException, *, verbose: bool) -> int:
    if verbose or os.environ.get("INTERLOCK_DEBUG"):
        import traceback  # noqa: PLC0415

        click.echo("".join(traceback.format_exception(error)), err=True)
        how = None
    else:
        how = "the same command with --verbose (or INTERLOCK_DEBUG=1) shows the traceback to report"
    words = f"{type(leaf).__name__}: {leaf}"
    return _complain(f"{words} - this is a fault of Interlock, not of yours", how, FAULT_OF_OURS)


def _give_up_stdout() -> int:
    """Nobody reads any more (`| head`): end quietly, and keep Python from complaining at its own end."""
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, 1)
    os.close(devnull)
    return PIPE_CLOSED
