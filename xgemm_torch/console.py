"""Where tables go: a terminal as wide as it is, a file or a pipe as wide as the tables need."""

from __future__ import annotations

from rich.console import Console

PIPE_WIDTH = 120


def console() -> Console:
    """Make a console for standard output."""
    terminal = Console()
    return terminal if terminal.is_terminal else Console(width=PIPE_WIDTH)
