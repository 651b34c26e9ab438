"""What commands share: files that are whole or absent, and the name that they were called by."""

from __future__ import annotations

import sys

import pytest

from xgemm_torch.tools import files, invocation


def test_a_file_is_replaced_and_nothing_is_left_beside_it(tmp_path):
    path = tmp_path / "x.json"
    for text in ("old", "new, \N{GREEK SMALL LETTER MU}s"):
        files.write_text(path, text, who="report")
        assert path.read_text(encoding="utf-8") == text
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("error", "raised"),
    [(OSError("disk full"), OSError), (OSError(28, "No space left"), OSError),
     (ValueError("no number"), ValueError), (KeyboardInterrupt(), KeyboardInterrupt)],
)  # fmt: skip
def test_a_failed_write_leaves_the_old_file(tmp_path, error, raised):
    path = tmp_path / "state"
    files.write_text(path, "old", who="survey")

    def half(file):
        file.write(b"ne")
        raise error

    with pytest.raises(raised) as caught:
        files.write_atomically(path, half, who="survey")
    if raised is OSError:
        reason = error.strerror or str(error)
        assert str(caught.value) == f"survey: {path} cannot be written: {reason}"
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]


def test_an_unfinished_file_has_the_name_that_was_asked_for(tmp_path):
    seen = []

    def look(file):
        seen.extend(path.name for path in tmp_path.iterdir())

    files.write_atomically(tmp_path / "x", look, who="report", suffix=".7")
    assert seen == ["x.7"]


@pytest.mark.parametrize(
    ("program", "name"),
    [("/usr/bin/xgemm", "xgemm"), ("/a/xgemm_torch/__main__.py", "python -m xgemm_torch")],
)
def test_the_next_command_is_named_as_this_one_was(monkeypatch, program, name):
    monkeypatch.setattr(sys, "argv", [program, "train"])
    assert invocation.called() == name
    assert invocation.called("exercise", 3, "--hint") == f"{name} exercise 3 --hint"
