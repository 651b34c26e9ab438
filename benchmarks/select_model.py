"""What ``auto`` estimates by: the fit of what the terms of a row's time cost.

The terms themselves, and which rows may be taken, are the library's to say (dispatch/cost.h,
`xgemm_torch.tools.contenders`). Here costs are found that fit measured times, and with which the
rows of least estimated time are nearly the fastest. ``select_table.py`` reads records and writes
the table.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from xgemm_torch import _C
from xgemm_torch.tools.contenders import Problem, Row, keeps

# [word, part of the time] of each term: "once", "work" or "memory".
TERMS: list[tuple[str, str]] = [tuple(term) for term in json.loads(_C.term_words())]
_PARTS = {part: slice(first, first + [its for _, its in TERMS].count(part))
          for first, (_, part) in reversed(list(enumerate(TERMS)))}  # fmt: skip
# The GPU that was measured: what the terms depend on.
SM = 90
# A row that was not measured where another was is held to take so many times the best at least.
UNMEASURED = 1.5
# Errors of a time below this part of it count by their squares, those above by their size.
SMALL = 0.05
# A row far from the best need not be known well: its weight falls as its time rises, down to this.
LEAST_WEIGHT = 0.02
# A choice is softened, while costs are fitted, over rows whose times differ by this part.
SOFT = 0.04
# How much of what is minimized is the loss of choices, and not the error of times.
CHOICE = 1.0
STEPS = 1500
# What is nowhere more than such a part of a time is no cost.
LEAST_PART = 1e-3
STRICT = {"fp32": False, "ieee": True}


def terms_of(p: Problem, sm_count: int) -> Tensor:
    """The terms of every row of every stage for contiguous, aligned operands."""
    a = (1, p.m) if p.layout[0] == "T" else (p.k, 1)
    b = (1, p.k) if p.layout[1] == "T" else (p.n, 1)
    step_a, step_b = (p.m * p.k, p.k * p.n) if p.batch > 1 else (0, 0)
    found = _C.terms(
        p.m, p.n, p.k, p.batch, *a, step_a % 4 == 0, *b, step_b % 4 == 0, SM, sm_count,
        step_a, step_b,
    )  # fmt: skip
    return torch.frombuffer(bytearray(found), dtype=torch.float64).view(-1, len(TERMS))


@dataclass(frozen=True)
class Measured:
    """Problems and what was measured of them.

    Attributes:
        problems: what was asked.
        torch_mm: microseconds of torch.mm.
        us: microseconds by problem and row; NaN where a row was not measured.
        terms: by problem, row and term.
        may: by precision, whether ``auto`` may take the row for the problem.
    """

    problems: list[Problem]
    torch_mm: Tensor
    us: Tensor
    terms: Tensor
    may: dict[str, Tensor]

    @classmethod
    def of(cls, found: Sequence[Mapping[str, Any]], rows: Sequence[Row], sm_count: int) -> Measured:
        """From the problems of records; ``rows`` are all of this build, in their order."""
        problems = [
            Problem(x["label"], m, n, k, layout, batch)
            for x in found
            for batch, m, n, k, layout in [x["problem"]]
        ]
        us = [[(x["look_us"] | x["us"]).get(row.key, math.nan) for row in rows] for x in found]
        return cls(
            problems,
            torch.tensor([x["torch_mm_us"] for x in found], dtype=torch.float64),
            torch.tensor(us, dtype=torch.float64),
            torch.stack([terms_of(p, sm_count) for p in problems]),
            {
                precision: torch.tensor(
                    [[r.auto and keeps(r, p, strict=strict) for r in rows] for p in problems]
                )
                for precision, strict in STRICT.items()
            },
        )

    def __getitem__(self, i: Tensor) -> Measured:
        """Some of the problems."""
        return Measured(
            [self.problems[int(x)] for x in i], self.torch_mm[i], self.us[i], self.terms[i],
            {precision: may[i] for precision, may in self.may.items()},
        )  # fmt: skip

    def best(self, precision: str) -> Tensor:
        """The least time of a row that may be taken."""
        us = torch.where(self.may[precision], self.us, math.nan)
        return us.nan_to_num(math.inf).amin(1)


def estimate(terms: Tensor, costs: Tensor) -> Tensor:
    """Microseconds by problem and row: `time_of` of csrc/xgemm/cost.h."""
    once, work, memory = (
        torch.einsum("prt,rt->pr", terms[..., part], costs[..., part])
        for part in (_PARTS["once"], _PARTS["work"], _PARTS["memory"])
    )
    return once + torch.sqrt(work * work + memory * memory + 1e-12)


def fit(m: Measured, *, steps: int = STEPS, choice: float = CHOICE) -> tuple[Tensor, Tensor]:
    """Costs by row and term, and of which rows there are any.

    Minimizes the error of logarithms of times, and how much longer the choices take that are made
    by them, by gradients.
    """
    known = m.us.isfinite().sum(0) >= 8
    known &= (m.may["fp32"] | m.may["ieee"]).any(0)
    rows = known.nonzero()[:, 0]
    terms, us = m.terms[:, rows].float(), m.us[:, rows].float()
    may = {precision: its[:, rows] for precision, its in m.may.items()}
    best = {precision: m.best(precision).float() for precision in STRICT}
    # A strict row stands beside strict ones: "ieee" has no others.
    reference = torch.where(may["ieee"], best["ieee"][:, None], best["fp32"][:, None])
    either = (may["fp32"] | may["ieee"]) & reference.isfinite()
    there = us.isfinite() & either
    target = torch.where(there, us, UNMEASURED * reference).clamp(1e-3, 1e9)
    target = torch.where(either, target, torch.ones_like(target))
    weight = torch.where(there, (reference / target).clamp(LEAST_WEIGHT, 1), 0.2)
    weight = torch.where(either, weight, torch.zeros_like(weight))
    weight = weight / weight.sum(0, keepdim=True).clamp_min(1e-9)
    # Terms as parts of the time: costs of one size, whatever their units.
    shares = torch.where(there[..., None], terms / target[..., None], torch.zeros_like(terms))
    unit = shares.amax(0)
    seen = unit > 1e-9
    terms = terms / torch.where(seen, unit, torch.ones_like(unit))
    root = torch.full(unit.shape, math.sqrt(1 / len(TERMS))) * seen
    root.requires_grad_()
    logs = {}
    for precision, its in may.items():
        loss = torch.log(us / best[precision][:, None])
        loss = torch.where(us.isfinite(), loss, math.log(2.0)).clamp(0, math.log(4.0))
        counts = best[precision].isfinite()
        logs[precision] = (its, torch.where(its, loss, torch.zeros_like(loss)), counts)

    optimizer = torch.optim.Adam([root], lr=0.03, betas=(0.9, 0.99))
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps, 1e-4)
    for step in range(steps):
        optimizer.zero_grad()
        log = torch.log(estimate(terms, root * root).clamp_min(1e-6))
        error = log - torch.log(target)
        error = torch.where(there, error, error.clamp_max(0))  # of those not measured, a bound
        total = (weight * (torch.sqrt(error * error + SMALL**2) - SMALL)).sum(0).mean()
        total = total + 1e-4 * (root * root).sum(1).mean()
        if choice and step > steps // 3:
            for its, loss, counts in logs.values():
                chances = torch.softmax(torch.where(its, -log / SOFT, -torch.inf)[counts], 1)
                total = total + choice * (chances * loss[counts]).sum(1).mean()
        total.backward()
        optimizer.step()
        schedule.step()
    costs = torch.zeros(m.us.shape[1], len(TERMS))
    part = (root * root * seen).detach()
    costs[rows] = torch.where(part > LEAST_PART, part / unit.clamp_min(1e-9), 0.0)
    return costs.double(), known


@dataclass(frozen=True)
class Worth:
    """What choices are worth, by problem.

    Attributes:
        pick: the row that was chosen.
        lost: its time over the least, 1 for the best choice; `UNMEASURED` where it has no time.
        ratio: torch.mm's time over its time.
        best: torch.mm's time over the least.
    """

    pick: Tensor
    lost: Tensor
    ratio: Tensor
    best: Tensor

    def __str__(self) -> str:
        """One line."""
        lost, ratio, best = self.lost, self.ratio, self.best

        def mean(x: Tensor) -> float:
            return float(x.log().mean().exp())

        def below(x: Tensor, limit: float) -> str:
            return f"{100 * float((x < limit).double().mean()):.1f}%"

        return (
            f"{len(lost)} problems: {mean(lost) - 1:.2%} lost, 1 in 100 over "
            f"{float(lost.quantile(0.99)) - 1:.0%}, at most {float(lost.max()) - 1:.0%}; of "
            f"torch.mm {mean(ratio):.3f}, below 0.98 {below(ratio, 0.98)}, below 0.90 "
            f"{below(ratio, 0.9)}, least {float(ratio.min()):.2f}; the best rows {mean(best):.3f}, "
            f"below 0.98 {below(best, 0.98)}, below 0.90 {below(best, 0.9)}"
        )


def worth(m: Measured, us: Tensor, precision: str) -> Worth:
    """What the rows of least estimated time are worth; problems without a time are left out."""
    best = m.best(precision)
    pick = torch.where(m.may[precision], us, math.inf).argmin(1)
    its = m.us.gather(1, pick[:, None])[:, 0]
    its = torch.where(its.isfinite(), its, UNMEASURED * best)
    some = best.isfinite()
    mm = m.torch_mm
    return Worth(pick[some], (its / best)[some], (mm / its)[some], (mm / best)[some])


def estimates(m: Measured, costs: Tensor, known: Tensor) -> Tensor:
    """Microseconds by problem and row; infinity for rows of which nothing is known."""
    us = estimate(m.terms, costs)
    us[:, ~known] = math.inf
    return us


def cross_validated(m: Measured, groups: Sequence[str], folds: int = 5, **options: Any) -> Tensor:
    """Estimates of every problem by costs that were fitted without its group, as `estimates`."""
    names = sorted(set(groups))
    us = torch.full_like(m.us, math.inf)
    for fold in range(min(folds, len(names))):
        its = {name for i, name in enumerate(names) if i % folds == fold}
        out = torch.tensor([group in its for group in groups])
        costs, known = fit(m[(~out).nonzero()[:, 0]], **options)
        us[out] = estimates(m[out.nonzero()[:, 0]], costs, known)
    return us
