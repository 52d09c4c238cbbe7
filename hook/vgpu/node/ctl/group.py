"""A group of verbs whose help shows each verb's first sentence whole.

Belongs here: the list of a group's verbs. Does not belong here: the list of all verbs, which vgpu.node.ctl.main
prints without loading them.
"""

from __future__ import annotations

import click

LONGEST_SUMMARY = 200


class Group(click.Group):
    """click cuts a sentence after 45 characters, and a terminal wraps it."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows = [(name, self.commands[name].get_short_help_str(LONGEST_SUMMARY)) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl(rows)
