"""Writes the list of exercises of docs/course.md, from the exercises' own files.

python docs/make_course.py            # needs no GPU
python docs/make_course.py --check    # writes nothing; exit code 1 when the list is stale
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from xgemm_torch import registry  # noqa: E402
from xgemm_torch.course.exercises import speed  # noqa: E402
from xgemm_torch.course.exercises.exercise import KINDS, Exercise, exercises  # noqa: E402

PAGE = ROOT / "docs" / "course.md"
LIST = re.compile(r"(<!-- exercises -->\n).*?(<!-- end -->)", re.DOTALL)


def _stage(name: str) -> str:
    """A link to a stage's page; those for problems of some shapes have one, too."""
    for stage in registry.stages():
        if stage.name == name:
            stem = f"{stage.rung:02d}_{name}" if stage.rung else name
            return f"[`{name}`](ladder/{stem}.md)"
    return ""


def _row(each: Exercise) -> str:
    file = f"../xgemm_torch/course/exercises/{each.file_name}"
    mark = speed.mark(each.stem)
    cells = (
        str(each.number), f"[{each.title}]({file})", KINDS[each.kind], _stage(each.stage),
        speed.percent(mark) if mark else "",
    )  # fmt: skip
    return f"| {' | '.join(cells)} |"


def page() -> str:
    """Give docs/course.md as it should be."""
    head = (
        "| # | exercise, with its solution | what to do | stage of the ladder | mark, of cuBLAS |\n"
        "|---|---|---|---|--:|"
    )
    rows = "\n".join([head, *map(_row, exercises())])
    return LIST.sub(lambda found: f"{found[1]}{rows}\n{found[2]}", PAGE.read_text(encoding="utf-8"))


def main() -> int:
    """Write the page, or say that it is stale."""
    text = page()
    if text == PAGE.read_text(encoding="utf-8"):
        return 0
    if "--check" in sys.argv:
        print(f"{PAGE.relative_to(ROOT)} is older than its exercises: python docs/make_course.py")
        return 1
    PAGE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
