"""Help texts that fit narrow terminals; Click alone assumes 50 columns at least."""

from __future__ import annotations

from collections.abc import Iterable

import click

from perfmodel.base.errors import InputError, unknown_name

LEAST = 20
"""Narrowest width that help is formatted for."""

MARGIN = 2
"""Columns left free at the right, as Click does."""


class Formatter(click.HelpFormatter):
    """Wraps options and commands to the width of the terminal."""

    def __init__(
        self, indent_increment: int = 2, width: int | None = None, max_width: int | None = None
    ) -> None:
        """Take the width from the terminal, unless one is given."""
        if width is None:
            import shutil

            columns = min(shutil.get_terminal_size().columns, max_width or 80)
            width = max(columns - MARGIN, LEAST)
        super().__init__(indent_increment, width, max_width)

    def write_dl(
        self, rows: Iterable[tuple[str, str]], col_max: int = 30, col_spacing: int = 2
    ) -> None:
        """Write options or commands, each with its text beside it or below."""
        from textwrap import TextWrapper

        wrapper = TextWrapper(
            width=self.width - self.current_indent,
            subsequent_indent=" " * (self.current_indent + self.indent_increment),
            break_long_words=False,
            break_on_hyphens=False,
        )
        rows = [("\n".join(wrapper.wrap(name)), text) for name, text in rows]
        super().write_dl(rows, min(col_max, self.width // 3), col_spacing)


class Group(click.Group):
    """Commands in a group: its help has their whole first sentences, and errors name them."""

    def parse_args(self, context: click.Context, args: list[str]) -> list[str]:
        """Refuse a group without a command."""
        if not args and not context.resilient_parsing:
            known = ", ".join(self.commands)
            raise InputError(f"{self.name}: a command is missing (known: {known})")
        return super().parse_args(context, args)

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        """The command of a name."""
        if name not in self.commands and not context.resilient_parsing:
            raise unknown_name("command", name, self.commands)
        return super().get_command(context, name)

    def format_commands(self, _: click.Context, formatter: click.HelpFormatter) -> None:
        """Write what each command does."""
        with formatter.section("Commands"):
            rows = [(name, each.get_short_help_str(1000)) for name, each in self.commands.items()]
            formatter.write_dl(rows)
