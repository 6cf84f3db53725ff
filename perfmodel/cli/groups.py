"""Groups of commands: their help has whole sentences, and errors suggest the nearest command."""

from __future__ import annotations

from collections.abc import Iterator

import click

from perfmodel.base.errors import InputError, unknown_name


class CommandGroup(click.Group):
    """Commands in a group."""

    def parse_args(self, context: click.Context, args: list[str]) -> list[str]:
        """Refuse a group without a command."""
        if not args and not context.resilient_parsing and not self.invoke_without_command:
            known = ", ".join(self.list_commands(context))
            raise InputError(f"{self.name}: a command is missing (known: {known})")
        return super().parse_args(context, args)

    def list_commands(self, _: click.Context) -> list[str]:
        """Names of the commands, in the order in which they were added."""
        return list(self.commands)

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        """The command of a name."""
        known = self.list_commands(context)
        if name not in known and not context.resilient_parsing:
            raise unknown_name("command", name, known)
        return super().get_command(context, name)

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        """Write what each command does."""
        commands = ((n, self.get_command(context, n)) for n in self.list_commands(context))
        with formatter.section("Commands"):
            formatter.write_dl([(n, c.get_short_help_str(1000)) for n, c in commands if c])


def commands(group: click.Group, context: click.Context) -> Iterator[tuple[str, click.Command]]:
    """Name and command of each command of a group, and of the groups in it."""
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            inner = commands(command, click.Context(command, context, name))
            yield from ((f"{name} {below}", member) for below, member in inner)
        elif command is not None:
            yield name, command
