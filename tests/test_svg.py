"""A picture that was made small is the same picture."""

from __future__ import annotations

import io
import re
from xml.etree import ElementTree as Xml

import numpy as np
import pytest

from xgemm_torch.course import svg
from xgemm_torch.tools import plotting

PATH = "{http://www.w3.org/2000/svg}path"


def written(draw, width=4, height=3):
    from matplotlib import rc_context

    figure = plotting.new_figure(width, height)
    draw(figure.add_axes((0, 0, 1, 1)))
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "x"}):
        figure.savefig(file := io.StringIO(), format="svg", metadata={"Date": None})
    return file.getvalue()


def ends(d):
    """The points of a path of relative commands, in points."""
    found, x, y, start = [], 0.0, 0.0, (0.0, 0.0)
    for command, numbers in re.findall(r"([mlhvqcz])([^mlhvqcz]*)", d):
        n = [float(number) for number in re.findall(r"-?[\d.]+", numbers)]
        if command == "z":
            x, y = start
            continue
        x += 0 if command == "v" else n[0] if command == "h" else n[-2]
        y += 0 if command == "h" else n[-1]
        if command == "m":
            start = x, y
        found.append((x, y))
    return found


def test_bars_of_a_colour_are_one_path_where_they_were():
    def draw(axes):
        axes.set_axis_off()
        axes.set_xlim(0, 100)
        axes.set_ylim(0, 10)
        axes.bar(np.arange(1, 100, 2), np.arange(50) % 9 + 1, width=1.3, color="#102030")

    text = written(draw)
    small = svg.slim(text, "what it is")
    assert len(small) < len(text) / 3
    paths = [p.get("d") for p in Xml.fromstring(small).iter(PATH)]
    (bars,) = [d for d in paths if d.count("m") == 50]
    corners = ends(bars)
    assert len(corners) == 200
    for i in range(50):
        x = [corner[0] for corner in corners[4 * i : 4 * i + 4]]
        y = [corner[1] for corner in corners[4 * i : 4 * i + 4]]
        # 288 x 216 points, y down; a tenth of a point is rounded, nothing adds up.
        assert min(x) == pytest.approx((2 * i + 1 - 0.65) * 2.88, abs=0.06)
        assert max(x) == pytest.approx((2 * i + 1 + 0.65) * 2.88, abs=0.06)
        assert min(y) == pytest.approx(216 - (i % 9 + 1) * 21.6, abs=0.06)
        assert max(y) == pytest.approx(216, abs=0.06)


def test_text_images_and_clips_stay():
    def draw(axes):
        axes.imshow(np.arange(12).reshape(3, 4))
        axes.text(1, 1, "lane <5> & more")
        axes.axhline(1.5, color="red")

    text = written(draw)
    small = svg.slim(text, "a digest")
    before, after = (Xml.fromstring(t) for t in (text, small))

    def of(root, name):
        return [e for e in root.iter() if e.tag.endswith("}" + name)]

    assert [t.text for t in of(before, "text")] == [t.text for t in of(after, "text")]
    assert len(of(before, "image")) == len(of(after, "image")) == 1
    clips = {e.get("id") for e in of(after, "clipPath")}
    used = set(re.findall(r"url\(#(\w+)\)", small))
    assert used and used <= clips
    assert of(after, "desc")[0].text == "a digest" and "metadata" not in small
    classes = set(re.findall(r'class="(\w+)"', small))
    assert classes == set(re.findall(r"\.(s\d+)\{", small))


def test_what_lies_over_something_else_stays_over_it():
    def draw(axes):
        axes.set_axis_off()
        for x, color in enumerate(("#ff0000", "#00ff00", "#ff0000")):
            axes.fill([x, x + 2, x + 2], [0, 0, 1], color=color)
        axes.fill([0, 1, 1], [0, 0, 1], color="#0000ff", alpha=0.5)
        axes.fill([0, 1, 1], [0, 0, 1], color="#0000ff", alpha=0.5)

    small = svg.slim(written(draw), "")
    styles = dict(re.findall(r"\.(s\d+)\{([^}]*)\}", small))
    order = [
        re.search(r"fill:(#\w+)", p.get("style") or styles[p.get("class")])[1]
        for p in Xml.fromstring(small).iter(PATH)
    ]
    assert order[-5:] == ["#ff0000", "#00ff00", "#ff0000", "#0000ff", "#0000ff"]


def test_the_same_picture_is_the_same_text():
    text = written(lambda axes: axes.plot([1, 3, 2]))
    assert svg.slim(text, "x") == svg.slim(text, "x")


def test_curves_and_marks_stay_where_they_are():
    def draw(axes):
        axes.set_axis_off()
        axes.set_xlim(0, 4)
        axes.set_ylim(0, 3)
        axes.plot([1, 3], [1, 2], "o", markersize=10, color="#123456")

    paths = [p.get("d") for p in Xml.fromstring(svg.slim(written(draw), "")).iter(PATH)]
    (marks,) = [d for d in paths if "c" in d]
    points = np.array(ends(marks))
    half = len(points) // 2
    for center, its in (((72, 144), points[:half]), ((216, 72), points[half:])):
        assert its.mean(0) == pytest.approx(center, abs=1.5)
        assert np.abs(its - center).max() == pytest.approx(5, abs=0.1)
