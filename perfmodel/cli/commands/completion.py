"""``perfmodel completion``."""

from __future__ import annotations

import click

from perfmodel.cli.shared import COMPLETE


@click.command()
@click.argument("shell", type=click.Choice(("bash", "zsh", "fish")))
@click.pass_context
def completion(context: click.Context, /, shell: str) -> None:
    """Print a script that completes words in a shell.

    It completes commands, options, names of models, devices, clusters and architectures, the
    options of an architecture, and files. One of these lines installs it, for new shells:

    \b
    perfmodel completion bash >> ~/.bashrc
    perfmodel completion zsh >> ~/.zshrc
    perfmodel completion fish > ~/.config/fish/completions/perfmodel.fish
    """
    from perfmodel.cli.completing import script

    click.echo(script(context.find_root().command, shell, COMPLETE), nl=False)
