"""The pages of README.md and docs/ as a site: the same files, with the sources that they link to.

A link of a page to a file of the tree, which on a forge shows that file, leads to a page with its
text here; a folder's page lists its files. Nothing is fetched when a page is looked at: fonts are
the reader's own. ``mkdocs build --strict`` fails where a link or an anchor leads nowhere.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from .settings import ROOT, BuildError

BUILD_DIR = Path("build", "site")
STYLE = """\
/* Names of stages are not broken; a table that is too wide is moved by itself. */
.md-typeset table code { overflow-wrap: normal; word-break: keep-all; }
/* Pictures are drawn for white paper. */
[data-md-color-scheme="slate"] .md-typeset img { background: white; }
.md-grid { max-width: 75rem; }
"""
# Pages of the root; GitHub's README.md is the site's first.
_TOP = ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")
_LANGUAGES = {".cu": "cuda", ".h": "cpp", ".cpp": "cpp", ".inc": "cpp", ".py": "python"}
_PAGE = tuple(_LANGUAGES)  # what becomes a page; any other file is served as it is
_LINK = re.compile(r"(?<!!)\]\((?P<path>[^)#:\s]+)(?P<rest>#[^)\s]*)?\)")
_SECTIONS: dict[str, list[str]] = {
    "Use": ["docs/guide.md", "docs/measurements.md", "docs/examples.md"],
    "Learn": ["docs/course.md", "docs/chapter-0.md", "docs/ladder/*.md", "docs/glossary.md"],
    "Work on it": ["docs/design.md", "docs/adding-a-stage.md", "CONTRIBUTING.md", "SECURITY.md",
                   "CHANGELOG.md"],
}  # fmt: skip


def build(out: Path, root: Path = ROOT) -> int:
    """Builds the site of a tree into ``out``, in place of what is there; the number of its pages.

    Raises:
        BuildError: mkdocs fails, as by a link that leads nowhere; with its words.
    """
    place = root / BUILD_DIR
    shutil.rmtree(place, ignore_errors=True)
    pages = stage(root, place / "pages")
    (place / "pages" / "site.css").write_text(STYLE)
    config = place / "mkdocs.yml"
    config.write_text(json.dumps(settings(root, place / "pages", out), indent=1))  # YAML, too
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", str(config)]
    # mkdocs-material would print what it thinks of the next mkdocs.
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode:
        raise BuildError(f"the site cannot be built:\n{(done.stdout + done.stderr).strip()}")
    return pages


def stage(root: Path, place: Path) -> int:
    """Copies pages, pictures, and all that is linked to, into ``place``; the number of pages."""
    waiting = [root / name for name in _TOP] + sorted((root / "docs").rglob("*.md"))
    for path in (root / "docs" / "images").rglob("*"):
        if path.is_file():
            _copy(path, place / path.relative_to(root))
    seen = set(waiting)
    while waiting:
        path = waiting.pop()
        linked: list[Path] = []
        name = path.relative_to(root)
        if path.is_dir():
            text, name = _listing(path, linked), name / "index.md"
        elif path.suffix == ".md":
            text = _relinked(path.read_text(encoding="utf-8"), path.parent, root, linked)
        else:
            text, name = _code(path, root), name.with_name(f"{name.name}.md")
        to = place / name
        to.parent.mkdir(parents=True, exist_ok=True)
        to.write_text(text, encoding="utf-8")
        for found in linked:
            if found.is_dir() or found.suffix in (*_PAGE, ".md"):
                waiting += [found] if found not in seen else []
                seen.add(found)
            else:
                _copy(found, place / found.relative_to(root))
    return len(seen)


def settings(root: Path, pages: Path, out: Path) -> dict[str, Any]:
    """What mkdocs is to do."""
    sections: list[Any] = [{"xgemm_torch": "README.md"}]
    for title, names in _SECTIONS.items():
        entries: list[Any] = []
        for name in names:
            found = sorted(path.relative_to(root).as_posix() for path in root.glob(name))
            # The ladder's first page is its README.
            entries += [{"The ladder": sorted(found, key=_ladder)}] if "*" in name else found
        sections.append({title: entries})
    return {
        "site_name": "xgemm_torch",
        "docs_dir": str(pages),
        "site_dir": str(out.resolve()),
        "use_directory_urls": False,  # a folder that opens without a server
        "nav": sections,
        "not_in_nav": "/csrc/\n/xgemm_torch/\n/examples/\n/benchmarks/\n",
        "validation": {"links": dict.fromkeys(("not_found", "anchors", "unrecognized_links"),
                                              "warn")},
        "theme": {
            "name": "material",
            "font": False,
            "features": ["navigation.indexes", "navigation.top", "content.code.copy",
                         "toc.follow"],
            "palette": [
                {"media": "(prefers-color-scheme: light)", "scheme": "default",
                 "primary": "blue grey",
                 "toggle": {"icon": "material/weather-night", "name": "dark"}},
                {"media": "(prefers-color-scheme: dark)", "scheme": "slate", "primary": "blue grey",
                 "toggle": {"icon": "material/weather-sunny", "name": "light"}},
            ],
        },
        "extra_css": ["site.css"],
        "plugins": ["search"],
        "markdown_extensions": [
            "tables", "sane_lists", {"toc": {"permalink": True}}, "pymdownx.superfences",
            {"pymdownx.highlight": {"anchor_linenums": True}},
        ],
    }  # fmt: skip


def _ladder(name: str) -> tuple[bool, bool, str]:
    """README first, then the rungs in order, then what is none."""
    stem = Path(name).stem
    return stem != "README", not stem[0].isdigit(), stem


def _relinked(text: str, here: Path, root: Path, linked: list[Path]) -> str:
    """A page's text with links to sources led to their pages; notes what it links to."""

    def led(match: re.Match[str]) -> str:
        target = Path(os.path.normpath(here / match["path"]))
        if not target.exists() or not target.is_relative_to(root):
            return match[0]  # mkdocs says it
        linked.append(target)
        rest = match["rest"] or ""
        if target.is_dir():
            return f"]({match['path'].rstrip('/')}/index.md{rest})"
        if target.suffix in _PAGE:  # which have no anchor for several lines
            lines = re.fullmatch(r"#L\d+-L\d+", rest)
            return f"]({match['path']}.md{'' if lines else rest})"
        return match[0]

    return "".join(_outside_code(text, lambda part: _LINK.sub(led, part)))


def _outside_code(text: str, change: Callable[[str], str]) -> Iterator[str]:
    """The text with what is in no fence changed."""
    for number, part in enumerate(
        re.split(r"(^```.*?^```$)", text, flags=re.MULTILINE | re.DOTALL)
    ):
        yield part if number % 2 else change(part)


def _listing(folder: Path, linked: list[Path]) -> str:
    """The page of a folder."""
    files = sorted(path for path in folder.iterdir() if path.suffix in _PAGE)
    linked += files
    return f"# {folder.name}\n\n" + "".join(f"- [{p.name}]({p.name}.md)\n" for p in files)


def _code(path: Path, root: Path) -> str:
    """The page of a source file, with the lines' numbers."""
    name = path.relative_to(root).as_posix()
    text = path.read_text(encoding="utf-8").rstrip("\n")
    return (
        f"---\ntitle: {path.name}\nsearch:\n  exclude: true\n---\n\n# {path.name}\n\n`{name}`\n\n"
        f'~~~~ {{.{_LANGUAGES[path.suffix]} linenums="1"}}\n{text}\n~~~~\n'
    )


def _copy(path: Path, to: Path) -> None:
    to.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(path, to)
