"""The group ``interlock``: commands that are imported when they are called, and options that may stand on either side of them."""

from __future__ import annotations

import difflib
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

import click

from interlock.cli.session import session_of


class Entry(NamedTuple):
    """Where a command lives and what the list of commands says of it; importing it for that would make ``--help`` slow."""

    module: str
    attribute: str
    section: str
    short_help: str


MAIN, RUNS, DISPATCHER, UPKEEP = "The main job", "Runs", "The dispatcher", "Set up and keep up"

COMMANDS: dict[str, Entry] = {
    "demo": Entry("demo", "demo_command", MAIN, "See it work: a small backlog over a small git repository."),
    "run": Entry("run", "run_command", MAIN, "Run a backlog to its end."),
    "add": Entry("commands.add", "add", MAIN, "Queue one task."),
    "ps": Entry("commands.ps", "ps", RUNS, "List runs."),
    "show": Entry("commands.show", "show", RUNS, "Everything about one run."),
    "logs": Entry("commands.logs", "logs", RUNS, "Print what a run's agent wrote."),
    "why": Entry("commands.why", "why", RUNS, "Why a run has not started or ended."),
    "cancel": Entry("commands.operate", "cancel", RUNS, "Cancel runs."),
    "retry": Entry("commands.operate", "retry", RUNS, "Run ended runs again, each as a new run."),
    "close": Entry("commands.operate", "close", RUNS, "Say that runs were done elsewhere."),
    "hold": Entry("commands.operate", "hold", RUNS, "Keep queued runs from starting."),
    "unhold": Entry("commands.operate", "unhold", RUNS, "Let held runs start again."),
    "set": Entry("commands.operate", "set_run", RUNS, "Change the priority of a run."),
    "answer": Entry("commands.operate", "answer", RUNS, "Answer the question of a blocked run."),
    "up": Entry("commands.up", "up", DISPATCHER, "Start the dispatcher, here in the foreground."),
    "agent": Entry("commands.agent", "agent", DISPATCHER, "Pull runs from a dispatcher, and run a command for each."),
    "stop": Entry("commands.stop", "stop", DISPATCHER, "Stop the dispatcher."),
    "pause": Entry("commands.brakes", "pause", DISPATCHER, "Start nothing new; running agents go on."),
    "resume": Entry("commands.brakes", "resume", DISPATCHER, "Start new runs again."),
    "routes": Entry("commands.routes", "routes", DISPATCHER, "Which agent does which type of work."),
    "template": Entry("commands.template", "template", DISPATCHER, "Tasks with blanks in them."),
    "token": Entry("commands.token", "token", DISPATCHER, "Who may come in by HTTP from elsewhere."),
    "limits": Entry("commands.numbers", "limits", DISPATCHER, "Limits and what is used of them."),
    "stats": Entry("commands.numbers", "stats", DISPATCHER, "Counts, waiting times, failure rate."),
    "init": Entry("commands.init", "init", UPKEEP, "Make interlock.yaml and the data folder here."),
    "config": Entry("commands.config", "config", UPKEEP, "Check the configuration."),
    "verify": Entry("commands.verify", "verify", UPKEEP, "Explore what the configuration leads to."),
    "doctor": Entry("commands.doctor", "doctor", UPKEEP, "Look for faults, and mend them."),
    "backup": Entry("commands.keeping", "backup", UPKEEP, "Copy the database while it is in use."),
    "export": Entry("commands.keeping", "export", UPKEEP, "Print runs, attempts and events as data."),
    "import": Entry("commands.importing", "import_group", UPKEEP, "Take over the runs of another dispatcher."),
    "prune": Entry("commands.prune", "prune", UPKEEP, "Delete runs that ended long ago."),
    "diagram": Entry("commands.diagram", "diagram", UPKEEP, "Draw a state machine, or the way of one run."),
    "completion": Entry("commands.completion", "completion", UPKEEP, "Print the completion script of a shell."),
    "version": Entry("commands.version", "version", UPKEEP, "Print the version."),
}


def _keep_data(ctx: click.Context, _: click.Parameter, value: Path | None) -> None:
    if value is not None:
        session_of(ctx).data = value


def _keep_config(ctx: click.Context, _: click.Parameter, value: Path | None) -> None:
    if value is not None:
        session_of(ctx).config = value


def _keep_verbose(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    if value:
        session_of(ctx).verbose = True


def global_options(*, hidden: bool) -> list[click.Option]:
    """``--data``, ``--config`` and ``--verbose``. They are shown at the group and understood behind every command as well."""
    return [
        click.Option(
            ["--data"],
            type=click.Path(path_type=Path),
            metavar="DIR",
            expose_value=False,
            callback=_keep_data,
            hidden=hidden,
            help="Data folder. Else INTERLOCK_DATA, else the nearest .interlock from here up.",
        ),
        click.Option(
            ["--config"],
            type=click.Path(path_type=Path),
            metavar="FILE",
            expose_value=False,
            callback=_keep_config,
            hidden=hidden,
            help="Configuration. Else interlock.yaml, when it is there.",
        ),
        click.Option(
            ["--verbose"],
            is_flag=True,
            expose_value=False,
            callback=_keep_verbose,
            hidden=hidden,
            help="Say more; show the traceback of a fault of Interlock.",
        ),
    ]


def take_global_options(command: click.Command) -> click.Command:
    """Let a command (and the commands below it) understand the global options behind its name."""
    taken = {name for parameter in command.params for name in parameter.opts}
    command.params += [option for option in global_options(hidden=True) if not taken & set(option.opts)]
    if isinstance(command, click.Group):
        for below in command.commands.values():
            take_global_options(below)
    return command


class InterlockGroup(click.Group):
    """Imports a command when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """Their names, in the order in which a person meets them."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - the same
        """The command of that name; imported now."""
        if cmd_name in self.commands:
            return self.commands[cmd_name]
        entry = COMMANDS.get(cmd_name)
        if entry is None:
            return None
        command: click.Command = getattr(import_module(f"interlock.cli.{entry.module}"), entry.attribute)
        self.commands[cmd_name] = take_global_options(command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does it, with the nearest name when there is none."""
        if args and not args[0].startswith("-") and args[0] not in COMMANDS:
            near = difflib.get_close_matches(args[0][:40], COMMANDS, n=1)
            hint = f" Did you mean '{near[0]}'?" if near else ""
            raise click.UsageError(f"There is no command {args[0]!r}.{hint}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """The commands under headings, without importing them."""
        for section in (MAIN, RUNS, DISPATCHER, UPKEEP):
            with formatter.section(section):
                formatter.write_dl(
                    [(name, entry.short_help) for name, entry in COMMANDS.items() if entry.section == section]
                )
