"""The command that prints the completion script of a shell."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from everbeat.cli.examples import examples

_VARIABLE = "_EVERBEAT_COMPLETE"


@click.command(
    epilog=examples(
        "everbeat completion bash > ~/.local/share/bash-completion/completions/everbeat",
        'everbeat completion zsh > "${fpath[1]}/_everbeat"',
        "everbeat completion fish > ~/.config/fish/completions/everbeat.fish",
    )
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the script that completes commands and options in a shell."""
    script = get_completion_class(shell)
    assert script is not None
    click.echo(script(context.find_root().command, {}, "everbeat", _VARIABLE).source())
