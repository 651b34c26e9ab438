"""`build_tools.site`: what becomes a page, and where a page's links lead."""

from __future__ import annotations

import importlib.util
import re

import pytest

from build_tools import site
from build_tools.settings import ROOT, BuildError

GUIDE = """# Guide

[the code](../csrc/a.cu), [a line](../csrc/a.cu#L3), [all](../csrc), [home](../README.md#x),
![p](images/p.svg), [a record](../data.json), [elsewhere](https://example.org/a.cu), [gone](../b.cu)

```cpp
x[](../csrc/a.cu)
```
"""


@pytest.fixture
def tree(tmp_path):
    files = {
        "README.md": "# A\n\n## x\n\n[guide](docs/guide.md)\n",
        "docs/guide.md": GUIDE,
        "docs/images/p.svg": "<svg xmlns='http://www.w3.org/2000/svg'/>",
        "csrc/a.cu": "int a;\n// ~~~ ``` {.b}\n",
        "csrc/b.h": "int b;\n",
        "data.json": "{}",
    }
    files |= dict.fromkeys(("CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md"), "# B\n")
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def test_links_to_sources_lead_to_pages_of_them(tree, tmp_path):
    out = tmp_path / "pages"
    assert site.stage(tree, out) == 8  # five pages, two sources, a folder
    text = (out / "docs/guide.md").read_text()
    assert re.findall(r"\]\((.*?)\)", text) == [
        "../csrc/a.cu.md", "../csrc/a.cu.md#L3", "../csrc/index.md", "../README.md#x",
        "images/p.svg", "../data.json", "https://example.org/a.cu", "../b.cu", "../csrc/a.cu",
    ]  # fmt: skip
    assert (out / "data.json").read_text() == "{}" and (out / "docs/images/p.svg").exists()
    assert "- [b.h](b.h.md)" in (out / "csrc/index.md").read_text()
    code = (out / "csrc/a.cu.md").read_text()
    assert '{.cuda linenums="1"}\nint a;\n// ~~~ ``` {.b}\n~~~~\n' in code


def test_every_page_of_the_tree_is_in_the_navigation_once(tmp_path):
    nav = site.settings(ROOT, tmp_path, tmp_path)["nav"]

    def leaves(entries):
        for entry in entries:
            if isinstance(entry, str):
                yield entry
            else:
                for inside in entry.values():
                    yield from leaves([inside] if isinstance(inside, str) else inside)

    found = list(leaves(nav))
    pages = {p.relative_to(ROOT).as_posix() for p in (ROOT / "docs").rglob("*.md")}
    assert len(found) == len(set(found)) and set(found) == pages | set(site._TOP)
    ladder = [name for name in found if "/ladder/" in name]
    assert ladder[:2] == ["docs/ladder/README.md", "docs/ladder/01_naive.md"]


@pytest.mark.skipif(
    importlib.util.find_spec("mkdocs") is None, reason="no mkdocs; `make docs` installs it"
)
@pytest.mark.parametrize("link", ["../b.cu", "none.md", "../README.md#none"])
def test_a_link_that_leads_nowhere_is_an_error(tree, link):
    guide = tree / "docs/guide.md"
    guide.write_text("# Guide\n")
    for name in {n for names in site._SECTIONS.values() for n in names} - {"docs/ladder/*.md"}:
        if not (tree / name).exists():
            (tree / name).write_text("# C\n")
    (tree / "docs/ladder").mkdir()
    (tree / "docs/ladder/README.md").write_text("# D\n")
    site.build(tree / "site", tree)
    assert (tree / "site/docs/guide.html").exists()
    guide.write_text(f"# Guide\n\n[a]({link})\n")
    with pytest.raises(BuildError, match=re.escape(link)):
        site.build(tree / "site", tree)
