"""The form of the records in benchmarks/results: one line an entry, no repeated keys.

    python benchmarks/records.py record.json    # rewrites a record in this form

A record is JSON whose numbers have six significant digits; a float32, as losses are, has as many
as tell it from its neighbours. The problems of survey.py, which would repeat the names of dozens of
rows each, are a list of short lines under a header: ``names`` are the rows that numbers stand for,
``columns`` what a line has. Times by row are a list in the order of ``names``; a negative number
skips so many names. `read` gives them back as dicts. A record named ``*.json.xz`` is compressed: a
survey's hundred thousand numbers take a fifth of the bytes.
"""

from __future__ import annotations

import json
import lzma
import struct
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from xgemm_torch.tools.files import write_atomically

# Of any number; of a float32 at most, which are enough for each.
DIGITS, MOST_DIGITS = 6, 9
PRECISIONS = ("fp32", "ieee")
KEY = "problem"
BY_ROW, BY_PRECISION, PICKS = ("us", "look_us"), "auto_us", "auto"


def read(path: Path) -> dict[str, Any]:
    """Give a record; its problems are a dict, however they are stored."""
    record = json.loads(stored_text(path))
    if "columns" not in record:
        return record
    names, columns = record.pop("names"), record.pop("columns")
    problems = {}
    for line in record["problems"]:
        entry = dict(zip(columns, line, strict=True))
        key = entry.pop(KEY)
        for column in BY_ROW:
            if column in entry:
                entry[column] = dict(_by_row(entry[column], names))
        if BY_PRECISION in entry:
            entry[BY_PRECISION] = _by_precision(map(float, entry[BY_PRECISION]))
            entry[PICKS] = _by_precision(names[number] for number in entry[PICKS])
            entry[KEY] = _sizes(key)
        problems[key] = entry
    return {**record, "problems": problems}


def stored_text(path: Path) -> str:
    """Give a file's text, decompressed where its name says so."""
    stored = path.read_bytes()
    return (lzma.decompress(stored) if path.suffix == ".xz" else stored).decode()


def text(record: Mapping[str, Any]) -> str:
    """Give the text of a record; `read` gives it back with the digits that are kept."""
    if "rows" in record and isinstance(record.get("problems"), dict):
        record = _packed(record)
    parts = [f"{json.dumps(key)}: {_entries(value)}" for key, value in _rounded(record).items()]
    return "{\n" + ",\n".join(parts) + "\n}\n"


def write(path: Path, record: Mapping[str, Any]) -> None:
    """Write a record as a whole: one that is there stays until the new one is."""
    stored = text(record).encode()
    if path.suffix == ".xz":
        stored = lzma.compress(stored, preset=9 | lzma.PRESET_EXTREME)
    write_atomically(path, lambda file: file.write(stored), who="records")


def _packed(record: Mapping[str, Any]) -> dict[str, Any]:
    """Put problems in lines under a header."""
    problems: Mapping[str, Mapping[str, Any]] = record["problems"]
    others = {row for x in problems.values() for column in BY_ROW for row in x.get(column, ())}
    others |= {row for x in problems.values() for row in x.get(PICKS, {}).values()}
    names = [*record["rows"], *sorted(others - set(record["rows"]))]
    first = next(iter(problems.values()), {})
    columns = [KEY, *(column for column in first if column != KEY)]
    places = {row: number for number, row in enumerate(names)}
    lines = []
    for key, entry in problems.items():
        if KEY in entry and _sizes(key) != entry[KEY]:
            raise ValueError(f"a problem of sizes {entry[KEY]} has the key {key!r}")
        line: list[Any] = [key]
        for column in columns[1:]:
            value = entry[column]
            if column in BY_ROW:
                value = _in_order(value, places)
            elif column == BY_PRECISION:
                value = [_time(value[precision]) for precision in PRECISIONS]
            elif column == PICKS:
                value = [places[value[precision]] for precision in PRECISIONS]
            line.append(value)
        lines.append(line)
    return {
        **{key: value for key, value in record.items() if key != "problems"},
        "names": names, "columns": columns, "problems": lines,
    }  # fmt: skip


def _in_order(times: Mapping[str, float], places: Mapping[str, int]) -> list[float]:
    found: list[float] = []
    at = 0
    for place, us in sorted((places[row], us) for row, us in times.items()):
        if place > at:
            found.append(at - place)
        found.append(_time(us))
        at = place + 1
    return found


def _by_row(stored: Sequence[float], names: Sequence[str]) -> Iterable[tuple[str, float]]:
    at = 0
    for value in stored:
        if value < 0:
            at -= int(value)
        else:
            yield names[at], float(value)
            at += 1


def _time(us: float) -> float:
    """A whole number has no point."""
    rounded = _short(us)
    return int(rounded) if rounded.is_integer() else rounded


def _by_precision(values: Iterable[Any]) -> dict[str, Any]:
    return dict(zip(PRECISIONS, values, strict=True))


def _sizes(key: str) -> list[Any]:
    """Batch, M, N, K and layout of a problem's key, ``"1x64x4096x4096 NT"``."""
    sizes, _, layout = key.partition(" ")
    return [*map(int, sizes.split("x")), layout]


def _rounded(x: Any) -> Any:
    if isinstance(x, float):
        return _short(x)
    if isinstance(x, Mapping):
        return {key: _rounded(value) for key, value in x.items()}
    return [_rounded(value) for value in x] if isinstance(x, (list, tuple)) else x


def _short(x: float) -> float:
    if float(f"{x:.{MOST_DIGITS}g}") == x:  # what was stored is not rounded again
        return x
    digits = DIGITS
    while _as_float32(x) == x and _as_float32(float(f"{x:.{digits}g}")) != x:
        digits += 1
    return float(f"{x:.{digits}g}")


def _as_float32(x: float) -> float:
    """The nearest float32; NaN, which is equal to nothing, where there is none."""
    try:
        return float(struct.unpack("f", struct.pack("f", x))[0])
    except OverflowError:
        return float("nan")


def _entries(value: Any) -> str:
    """JSON in a line, or with a line an entry where there are entries of entries."""
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    if not any(isinstance(x, (dict, list)) for x in inside):
        return _line(value)
    if isinstance(value, dict):
        lines = [f"{json.dumps(key)}:{_line(x)}" for key, x in value.items()]
        return "{\n" + ",\n".join(lines) + "\n}"
    return "[\n" + ",\n".join(map(_line, value)) + "\n]"


def _line(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


if __name__ == "__main__":
    for name in sys.argv[1:]:
        write(Path(name), read(Path(name)))
