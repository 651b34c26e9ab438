"""Options that several commands have, each declared once."""

from __future__ import annotations

import argparse

from . import timing


def add_layout(parser: argparse.ArgumentParser, *, several: bool = False) -> None:
    """Declare ``--layout``: a key of `timing.LAYOUTS`, or a list of them; NN by default.

    Args:
        parser: of the command that takes a problem.
        several: whether the command takes several at once, and ``options.layout`` is a list.
    """
    text = "how A and B are stored, N as they are, T transposed: A is (K, M), B is (N, K)"
    more = "; several for each problem" if several else ""
    parser.add_argument(
        "--layout", choices=list(timing.LAYOUTS), nargs="+" if several else None,
        default=["NN"] if several else "NN", help=f"{text}{more} (default: NN)",
    )  # fmt: skip
