"""What a learner has solved: a small JSON file beside the exercises, which nothing else needs.

One that is damaged counts as empty and is kept under another name; a folder that cannot be written
to costs the progress, not the exercise.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from ...tools.files import write_text

FILE = "progress.json"


@dataclass
class State:
    """Of one exercise: checks, those that failed, hints that were seen, whether it is solved.

    `last` is the kind of the last check's fault, or ``"good"``.
    """

    checks: int = 0
    failed: int = 0
    hints: int = 0
    solved: bool = False
    last: str = ""


class Progress:
    """The states of all exercises in a folder."""

    def __init__(self, folder: Path) -> None:
        """Read them; `trouble` says what could not be read or written, "" where all is well."""
        self.path = folder / FILE
        self.trouble = ""
        self._states: dict[str, State] = {}
        try:
            told = json.loads(self.path.read_text(encoding="utf-8"))
            for name, state in told["exercises"].items():
                known = {k: v for k, v in state.items() if k in State.__annotations__}
                self._states[str(name)] = _checked(State(**known))
        except FileNotFoundError:
            pass
        except OSError as error:
            self.trouble = f"progress is not read: {error}"
        except (ValueError, TypeError, KeyError, AttributeError):
            self._states = {}
            self._set_aside()

    def _set_aside(self) -> None:
        kept = self.path.with_suffix(".damaged.json")
        self.trouble = f"{self.path} was damaged; progress begins anew"
        try:
            os.replace(self.path, kept)
            self.trouble += f", the old file is {kept.name}"
        except OSError:
            pass

    def of(self, stem: str) -> State:
        """Give an exercise's state, to read or to change."""
        return self._states.setdefault(stem, State())

    def save(self) -> None:
        """Write the file, whole or not at all."""
        told = {"exercises": {name: asdict(state) for name, state in sorted(self._states.items())}}
        text = json.dumps(told, indent=1) + "\n"
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            # Two checks may end at a time.
            write_text(self.path, text, who="exercise", suffix=f".{os.getpid()}")
        except OSError as error:
            self.trouble = f"progress is not kept: {error}"


def _checked(state: State) -> State:
    numbers = (state.checks, state.failed, state.hints)
    if not all(type(n) is int and n >= 0 for n in numbers) or type(state.solved) is not bool:
        raise ValueError("a state of other types")
    return state
