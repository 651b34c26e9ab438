"""A new stage is one new file: a commit that adds one edits by hand nothing else but the changelog.

What is measured and generated from it may change with it. The rule holds for commits after the one
that brought this file; of those before, no more is asked.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
HERE = "tests/test_one_file.py"
STAGE = re.compile(r"csrc/xgemm/stages/[^/]+/[^/]+\.cu")
MADE = (
    "docs/ladder/", "docs/images/", "benchmarks/results/", "csrc/xgemm/dispatch/select_table.inc",
)  # fmt: skip
FIGURES = re.compile(r"<!-- figures: [\w-]+ -->\n.*?<!-- end -->", re.DOTALL)


def git(root: Path, *words: str) -> str:
    command = ["git", "-C", str(root), "-c", "user.name=t", "-c", "user.email=t@t.t", *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def edited(root: Path, commit: str) -> list[str]:
    """What a commit edits by hand beside the stages that it adds; nothing if it adds none."""
    lines = git(root, "diff-tree", "-r", "-M", "--root", "--no-commit-id", "--name-status", commit)
    changes = [line.split("\t") for line in lines.splitlines()]
    new = [names[0] for kind, *names in changes if kind == "A" and STAGE.fullmatch(names[0])]
    if not new:
        return []

    def by_hand(name: str, kind: str) -> bool:
        if name in new or name.startswith(MADE) or name == "CHANGELOG.md":
            return False
        if name.endswith(".md") and kind == "M":
            then, now = (git(root, "show", f"{at}:{name}") for at in (f"{commit}~", commit))
            return FIGURES.sub("", then) != FIGURES.sub("", now)
        return True

    return [name for kind, *names in changes for name in names[-1:] if by_hand(name, kind)]


def test_commits_that_add_a_stage_add_one_file():
    try:
        brought = git(ROOT, "log", "--diff-filter=A", "--format=%H", "--", HERE).split()
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("no repository, or no git")
    if not brought:
        pytest.skip("this file is not committed")
    for commit in git(ROOT, "rev-list", "--no-merges", f"{brought[-1]}..HEAD").split():
        found = edited(ROOT, commit)
        assert not found, f"{commit} adds a stage, which is one new file, and edits {found}"


@pytest.fixture
def repository(tmp_path):
    def commit(**files: str) -> str:
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        git(tmp_path, "add", "-A")
        git(tmp_path, "commit", "-q", "-m", "x")
        return git(tmp_path, "rev-parse", "HEAD").strip()

    git(tmp_path, "init", "-q")
    readme = "Words.\n<!-- figures: a -->\n1\n<!-- end -->\n"
    commit(**{"README.md": readme, "setup.py": "", "csrc/xgemm/stages/shapes/old.cu": "// old\n"})
    return tmp_path, commit


NEW = "csrc/xgemm/stages/ladder/24_new.cu"


@pytest.mark.parametrize(
    ("files", "found"),
    [
        ({NEW: "// a stage\n"}, []),
        ({NEW: "// a stage\n", "docs/ladder/24_new.md": "page", "CHANGELOG.md": "new"}, []),
        ({NEW: "// a stage\n", "README.md": "Words.\n<!-- figures: a -->\n2\n<!-- end -->\n"}, []),
        ({NEW: "// a stage\n", "README.md": "Other.\n"}, ["README.md"]),
        ({NEW: "// a stage\n", "setup.py": "new"}, ["setup.py"]),
        ({NEW: "// a stage\n", "csrc/xgemm/mainloop/new.h": "x"}, ["csrc/xgemm/mainloop/new.h"]),
        ({"setup.py": "new", "csrc/xgemm/stages/shapes/old.cu": "// changed\n"}, []),
    ],
    ids=["alone", "with pages", "with figures", "words", "code", "header", "no new stage"],
)
def test_what_a_commit_edits_beside_a_stage(repository, files, found):
    root, commit = repository
    assert edited(root, commit(**files)) == found


def test_a_stage_that_moves_is_not_new(repository):
    root, commit = repository
    (root / "csrc/xgemm/stages/shapes/old.cu").rename(root / "csrc/xgemm/stages/other.cu")
    (root / "csrc/xgemm/stages/ladder").mkdir()
    (root / "csrc/xgemm/stages/other.cu").rename(root / "csrc/xgemm/stages/ladder/01_old.cu")
    assert edited(root, commit(**{"setup.py": "new"})) == []
