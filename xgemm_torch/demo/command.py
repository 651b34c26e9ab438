"""``python -m xgemm_torch demo``: train and, where there is no GPU, what a CPU can show besides."""

from __future__ import annotations

import argparse

import torch

from ..train import command as train

# Steps of each run without a GPU, half of train's: on two cores with nothing else to do they take
# half a minute, and the tour as long; with two other programs beside it all takes under 3 minutes.
STEPS_ON_CPU = 300


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options: those of ``train``."""
    train.add_options(parser)


def run(options: argparse.Namespace) -> int:
    """Train, then make the tour; returns the process's exit code.

    The tour is made of pictures: ``--no-plot`` leaves it out.
    """
    options.out = train.folder_of(options)
    tour_follows = not (torch.cuda.is_available() or options.no_plot)
    if tour_follows and not options.resume and options.size in (None, train.SIZE):
        options.steps = STEPS_ON_CPU if options.steps is None else options.steps
    if code := train.run(options):
        return code
    if not tour_follows:
        return 0
    from . import tour

    return tour.run(options.out)
