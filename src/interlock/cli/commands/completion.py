"""``interlock completion``."""

from __future__ import annotations

import click

from interlock.cli.main import COMPLETION_VARIABLE
from interlock.cli.output import say


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the completion script of a shell.

    \b
    Examples:
      interlock completion bash >> ~/.bashrc
      interlock completion zsh >> ~/.zshrc
      interlock completion fish > ~/.config/fish/completions/interlock.fish
    """
    from click.shell_completion import get_completion_class  # noqa: PLC0415

    kind = get_completion_class(shell)
    assert kind is not None
    made = kind(ctx.find_root().command, {}, "interlock", COMPLETION_VARIABLE)
    # source() of bash would start a bash to ask for its version; the script itself is what is wanted.
    say(made.source_template % made.source_vars())
