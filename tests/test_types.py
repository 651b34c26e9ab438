"""Types: the package's own, and what a type checker says of a user's code."""

from __future__ import annotations

import inspect
import json
import os
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from types import ModuleType
from typing import get_args, get_type_hints

import pytest

import xgemm_torch
from xgemm_torch import _checks, invariant, simt, stock, types
from xgemm_torch.tools import timing

ROOT = Path(xgemm_torch.__file__).resolve().parents[1]
USER = ROOT / "tests" / "data" / "user_code.py"


@pytest.fixture(scope="module")
def found():
    """The checker's errors by file, line and code: of the package and the user's file at once."""
    pytest.importorskip("mypy", reason="there is no mypy; `make env` installs it")
    command = [
        sys.executable, "-m", "mypy", "--show-error-codes", "--no-pretty", "xgemm_torch", str(USER),
    ]  # fmt: skip
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert not done.stderr, done.stderr
    errors = defaultdict(list)
    for line in done.stdout.splitlines():
        if match := re.fullmatch(r"(.+?):(\d+): error: .*\[([\w-]+)\]", line):
            errors[match[1]].append((int(match[2]), match[3]))
    assert errors, done.stdout
    return done.stdout, errors


def test_the_package_has_no_error(found):
    text, errors = found
    assert list(errors) == [USER.relative_to(ROOT).as_posix()], text


def users_errors():
    """By line of the user's file the codes of what is wrong there."""
    return {
        number: line.partition("  # E: ")[2].split(", ")
        for number, line in enumerate(USER.read_text().splitlines(), 1)
        if "  # E: " in line
    }


def test_a_users_errors_are_found_and_nothing_else(found):
    wanted = [(number, code) for number, codes in users_errors().items() for code in codes]
    text, errors = found
    assert len(wanted) > 12
    assert sorted(errors[USER.relative_to(ROOT).as_posix()]) == sorted(wanted), text


# What mypy's codes are in pyright, whose overloads and unknown names are several errors each.
RULES = {
    "arg-type": {"reportArgumentType"},
    "call-arg": {"reportCallIssue"},
    "call-overload": {"reportCallIssue", "reportArgumentType"},
    "assignment": {"reportAttributeAccessIssue"},
    "attr-defined": {"reportAttributeAccessIssue", "reportUnknownArgumentType"},
}


def pyright(*files):
    """The errors of pyright in files, or in what pyproject.toml says: by file, line and rule."""
    pytest.importorskip("pyright", reason="there is no pyright; `make env` installs it")
    command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable]
    # Its own Node, whatever is on the path.
    environment = {**os.environ, "PYRIGHT_PYTHON_GLOBAL_NODE": "0"}
    done = subprocess.run(
        [*command, *files], cwd=ROOT, capture_output=True, text=True, timeout=300, env=environment
    )
    found = json.loads(done.stdout)
    assert found["summary"]["filesAnalyzed"] >= max(1, len(files)), done.stderr
    return [
        (Path(e["file"]).name, e["range"]["start"]["line"] + 1, e.get("rule", e["message"]))
        for e in found["generalDiagnostics"]
    ]


def test_pyright_finds_no_error_in_the_package():
    assert pyright() == []


def test_pyright_finds_a_users_errors_and_nothing_else():
    """In its strict mode: no line that is right has a value of unknown type."""
    wanted = users_errors()
    found = defaultdict(set)
    for _, line, rule in pyright(str(USER)):
        found[line].add(rule)
    assert set(found) == set(wanted), found
    for line, rules in found.items():
        assert rules <= set().union(*(RULES[code] for code in wanted[line])), (line, rules)


def test_names_are_those_of_the_types():
    assert get_args(types.Precision) == _checks.PRECISIONS
    assert get_args(types.Invariant) == _checks.INVARIANTS == tuple(invariant.PARTS_OF)
    assert get_args(types.Activation) == _checks.ACTIVATIONS
    assert get_args(types.Autocast) == stock.AUTOCASTS
    assert get_args(types.Order) == simt.ORDERS
    assert set(get_args(types.Layout)) == set(timing.LAYOUTS)


def public():
    """Every public function, class and method, by name."""
    for name in xgemm_torch.__all__:
        value = getattr(xgemm_torch, name)
        inside = {name: value}
        if isinstance(value, ModuleType):
            inside = {
                f"{name}.{key}": x
                for key, x in vars(value).items()
                if getattr(x, "__module__", None) == value.__name__ and not key.startswith("_")
            }
        for key, x in inside.items():
            yield key, x
            if inspect.isclass(x):
                for method, f in vars(x).items():
                    f = getattr(f, "fget", None) or getattr(f, "__func__", f)
                    if inspect.isfunction(f):
                        yield f"{key}.{method}", f


@pytest.mark.parametrize(("name", "value"), [pytest.param(*x, id=x[0]) for x in public()])
def test_annotations_can_be_evaluated(name, value):
    """As dataclass libraries, documentation and argument checkers do."""
    hints = get_type_hints(value)
    if inspect.isfunction(value):
        named = {
            key
            for key, p in inspect.signature(value).parameters.items()
            if p.annotation is not inspect.Parameter.empty
        }
        assert named <= set(hints)


def test_users_have_the_types():
    """A package tells type checkers that it has some by a file of that name."""
    assert (ROOT / "xgemm_torch" / "py.typed").is_file()
    assert (ROOT / "xgemm_torch" / "_C.pyi").is_file()
