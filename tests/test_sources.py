"""Every kernel of the five source systems has its operator, and the operator names it."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

import xgemm_torch
from xgemm_torch.course import marks, sources

STAGES = xgemm_torch.stages()


def test_every_published_kernel_has_its_stage_which_names_it():
    assert sources.missing(STAGES) == []


def test_no_kernel_of_a_system_is_left_out():
    assert Counter(kernel.system for kernel in sources.KERNELS) == {
        "X": 6, "T": 2, "S": 11, "L": 5, "C": 2,
    }  # fmt: skip
    assert set(sources.SYSTEMS) == {kernel.system for kernel in sources.KERNELS}
    assert len({(k.system, k.kernel) for k in sources.KERNELS}) == len(sources.KERNELS)


def test_a_system_has_an_address_or_a_note_that_says_why_not():
    for system in sources.SYSTEMS.values():
        assert system.title
        assert system.url.startswith("https://") or "no address" in system.note
        assert bool(system.author) == bool(system.url)


def test_a_missing_stage_is_named():
    left = [stage for stage in STAGES if stage.name != "smem_tiled"]
    lines = [line for line in sources.missing(left) if "smem_tiled" in line]
    assert lines == [
        "X 03 tiled: no stage smem_tiled",
        "T tiled: no stage smem_tiled",
        "C 1, tiled: no stage smem_tiled",
    ]


def test_a_stage_that_does_not_name_its_source_is_noticed():
    changed = [replace(s, source="X 02") if s.name == "coalesced" else s for s in STAGES]
    lines = [line for line in sources.missing(changed) if "coalesced" in line]
    assert [line.split(":")[0] for line in lines] == ["T untiled", "S naive"]


@pytest.mark.parametrize(
    ("cited", "source", "names"),
    [
        ("L v1", "L v1, X 01", True),
        ("L v1", "L v1.5", False),
        ("S v1", "S v10", False),
        ("T", "T untiled, X 02", False),
        ("T", "X 03, T", True),
        ("S v9 (code)", "S v9 (code)", True),
        ("cooperative fetching", "L v3 + cooperative fetching", True),
        ("L v3", "L v3 + cooperative fetching", True),
    ],
)
def test_citations_are_whole_entries(cited, source, names):
    assert sources.Kernel("L", "x", "y", cited).cited_by(source) is names


def test_figures_are_of_measured_sizes_and_below_the_peak():
    for kernel in sources.KERNELS:
        assert set(kernel.measured) <= {1024, 2048, 4096, 8192}
        assert all(0 < t < marks.H200_ROOFS["fp32_tflops"] for t in kernel.measured.values())
        if kernel.published is not None:
            assert 0 < kernel.published.tflops < 1.3 * kernel.published.cublas
        # Figures belong to systems that are programs.
        assert bool(kernel.measured) == (kernel.system in "XS") == bool(kernel.published)


def test_a_mark_is_no_lower_than_what_its_sources_measured():
    # The mark is the best known implementation; the sources' own programs are among the known.
    for kernel in sources.KERNELS:
        for size, mark in marks.MARKS.get(kernel.stage, {}).items():
            assert kernel.measured.get(size, 0.0) <= mark, (kernel, size)


def test_of_a_stage():
    assert [k.cited for k in sources.of_stage("coalesced")] == ["X 02", "T untiled", "S naive"]
    assert sources.of_stage("nope") == []
