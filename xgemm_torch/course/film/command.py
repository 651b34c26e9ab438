"""``python -m xgemm_torch film``: writes a page for a browser for each stage, and their list."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Sequence
from pathlib import Path

from ...registry import Stage, stages
from . import data, page

FOLDER = Path("films")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``film``."""
    parser.add_argument(
        "stages", nargs="*", metavar="STAGE", help="names or rungs; left out: every stage"
    )
    parser.add_argument(
        "--out", type=Path, default=FOLDER, help=f"folder to write to (default: {FOLDER})"
    )


def chosen(names: Sequence[str], ladder: Sequence[Stage]) -> list[Stage]:
    """The stages of these names or rungs, in the ladder's order; all where none is named.

    Raises:
        ValueError: there is no such stage.
    """
    known = {stage.name: stage for stage in ladder}
    by_rung = {str(stage.rung): stage.name for stage in ladder if stage.rung}
    wanted = [by_rung.get(name, name) for name in names]
    for name in wanted:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            hint = f"; did you mean {near[0]}?" if near else f"; there are {', '.join(known)}"
            raise ValueError(f"film: no stage {name}{hint}")
    return [stage for stage in ladder if not names or stage.name in wanted]


def write(wanted: Sequence[Stage], folder: Path) -> list[data.Film]:
    """Write films and their list, and say so; gives the films.

    Raises:
        data.CannotFilm: of none of the stages there can be a film.
    """
    films, left_out = [], []
    for stage in wanted:
        try:
            films.append(data.make(stage))
        except data.CannotFilm as why:
            left_out.append((stage, str(why)))
    if not films:
        raise data.CannotFilm(left_out[0][1])
    folder.mkdir(parents=True, exist_ok=True)
    shown = [film.stage for film in films]
    for film in films:
        path = folder / page.name_of(film.stage)
        path.write_text(page.film(film, shown), encoding="utf-8")
        print(f"{path}: {film.steps} steps", flush=True)
    for _, why in left_out:
        print(why)
    path = folder / "index.html"
    rows = [(film.stage, film.steps) for film in films]
    path.write_text(page.index(rows, left_out), encoding="utf-8")
    print(f"{path}: open it in a browser")
    return films


def run(options: argparse.Namespace) -> int:
    """Write the films that were asked for; returns 0."""
    write(chosen(options.stages, stages()), options.out)
    return 0
