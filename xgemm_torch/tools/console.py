"""Where tables go, and tables that fit there without a figure or a name being cut."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich import box
from rich.console import Console, ConsoleOptions, RenderableType
from rich.table import Table
from rich.text import Text

PIPE_WIDTH = 120


def console() -> Console:
    """Make a console for standard output: a pipe or a file is as wide as most tables need."""
    terminal = Console()
    return terminal if terminal.is_terminal else Console(width=PIPE_WIDTH)


@dataclass(frozen=True)
class Column:
    """A column of a `Fitted` table.

    Attributes:
        heading: its words may stand below each other.
        right: whether it is set flush right, as figures are.
        words: 0 for names and figures, each in a line of its own; else the least width of a text
            whose words may go on in further lines.
        spare: 0 for a column that is always shown; of others, that of the highest number is the
            first to be left out.
    """

    heading: str
    right: bool = False
    words: int = 0
    spare: int = 0


class Fitted:
    """A table that cuts nothing: too wide a one has thinner lines, then fewer columns, and says so.

    Cells are rich's markup.
    """

    def __init__(self, title: str, columns: Sequence[Column]) -> None:
        """Make a table without rows."""
        self.title, self.columns = title, list(columns)
        self.rows: list[tuple[list[Text], str | None, bool]] = []

    def add_row(self, *cells: str, style: str | None = None, end_section: bool = False) -> None:
        """Add a row, and a line below it at the end of a section."""
        self.rows.append(([Text.from_markup(cell) for cell in cells], style, end_section))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text | Table]:
        """Give the title, the table that fits, and what it leaves out."""
        shown, thin = self._fitting(options.max_width)
        if self.title:
            yield Text(self.title, style="table.title")
        yield self._table(shown, self._widths(shown, options.max_width, thin), thin)
        if len(shown) < len(self.columns):
            left_out = [c.heading for i, c in enumerate(self.columns) if i not in shown]
            yield Text(f"left out where it is narrow: {', '.join(left_out)}", style="dim")

    def _fitting(self, room: int) -> tuple[list[int], bool]:
        """Which columns are shown, and whether with thin lines."""
        shown = list(range(len(self.columns)))
        if self._needed(shown, thin=False) <= room:
            return shown, False
        while self._needed(shown, thin=True) > room:
            spare = max(shown, key=lambda i: self.columns[i].spare)
            if not self.columns[spare].spare:
                break
            shown.remove(spare)
        return shown, True

    def _needed(self, shown: Sequence[int], *, thin: bool) -> int:
        return sum(self._least(i) for i in shown) + _lines(len(shown), thin=thin)

    def _least(self, number: int) -> int:
        """The least width of a column."""
        column = self.columns[number]
        cells = [cells[number] for cells, _, _ in self.rows]
        heading = _longest(column.heading.split())
        if not column.words:
            return max(heading, self._most(number))
        words = _longest(word for cell in cells for word in cell.plain.split())
        return max(heading, words, min(column.words, self._most(number)))

    def _most(self, number: int) -> int:
        """The width that all cells of a column have place in."""
        cells = [cells[number] for cells, _, _ in self.rows]
        return _longest(line for cell in cells for line in cell.plain.split("\n"))

    def _widths(self, shown: Sequence[int], room: int, thin: bool) -> dict[int, int]:
        """The columns' widths: what they need, then what texts, then what headings like to have."""
        widths = {i: self._least(i) for i in shown}
        left = room - sum(widths.values()) - _lines(len(shown), thin=thin)
        for wish in (self._most, lambda i: len(self.columns[i].heading)):
            for i in shown:
                more = min(max(left, 0), max(wish(i) - widths[i], 0))
                widths[i], left = widths[i] + more, left - more
        return widths

    def _table(self, shown: Sequence[int], widths: dict[int, int], thin: bool) -> Table:
        table = (
            Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
            if thin
            else Table()
        )
        for i in shown:
            column = self.columns[i]
            table.add_column(
                column.heading, width=widths[i], overflow="fold",
                justify="right" if column.right else "left",
            )  # fmt: skip
        for cells, style, end_section in self.rows:
            row: list[RenderableType] = [cells[i] for i in shown]
            table.add_row(*row, style=style, end_section=end_section)
        return table


def _lines(columns: int, *, thin: bool) -> int:
    """What lines and gaps take of a table's width."""
    return 2 * (columns - 1) if thin else 3 * columns + 1


def _longest(words: Iterator[str] | Sequence[str]) -> int:
    return max((Text(word).cell_len for word in words), default=0)
