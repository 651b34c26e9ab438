"""Statistics of two contenders that take turns: ratio of their times, its interval, a verdict.

A round is a turn of each, in either order; two rounds of opposite orders make a block. Of a block
the mean of both log ratios counts: a drift that both contenders share cancels, and so does what
being second costs. The estimate is the trimmed mean of the blocks' log ratios, so that some turns
with a clock drop or an interrupt do not count, with Tukey and McLaughlin's interval: Student's t on
the winsorized deviation. With several problems, and their geometric mean, each interval is made at
Bonferroni's level: ``confidence`` is that of all verdicts together.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from statistics import NormalDist, fmean, stdev

# Of blocks' log ratios, at either end.
TRIM = 0.2
LEAST_BLOCKS = 5
MEAN = "geometric mean"


@dataclass(frozen=True)
class Round:
    """Seconds of a turn of each, and whether A's was the first."""

    a: float
    b: float
    a_first: bool


@dataclass(frozen=True)
class Ratio:
    """B's time over A's, and the interval that has the true one with confidence."""

    ratio: float
    low: float
    high: float

    def verdict(self, tolerance: float) -> str:
        """Say what the interval allows to say of a tolerance, as 0.03."""
        if self.low > 1 + tolerance:
            return "slower"
        if self.high < 1 / (1 + tolerance):
            return "faster"
        within = self.high <= 1 + tolerance and self.low >= 1 / (1 + tolerance)
        return "same" if within else "not certain"


def orders(rounds: int, seed: int = 0) -> list[bool]:
    """Give for each round whether A is first: by chance, and in each block once."""
    r = random.Random(seed)
    found: list[bool] = []
    for _ in range(-(-rounds // 2)):
        first = r.random() < 0.5
        found += [first, not first]
    return found


def blocks(rounds: Sequence[Round]) -> list[float]:
    """Give the mean log ratio of each block.

    Raises:
        ValueError: a block's rounds have the same order, or there are too few.
    """
    pairs = list(zip(rounds[::2], rounds[1::2], strict=False))
    if len(pairs) < LEAST_BLOCKS:
        raise ValueError(f"{len(rounds)} rounds: {2 * LEAST_BLOCKS} at least")
    if any(one.a_first == other.a_first for one, other in pairs):
        raise ValueError("a block's rounds must have opposite orders")
    return [fmean(math.log(r.b / r.a) for r in pair) for pair in pairs]


def judge(problems: Mapping[str, Sequence[Round]], *, confidence: float = 0.99) -> dict[str, Ratio]:
    """Give each problem's ratio, and with several problems that of the geometric mean."""
    several = len(problems) > 1
    level = (1 - confidence) / (len(problems) + several)
    moments = {name: _trimmed(blocks(rounds)) for name, rounds in problems.items()}
    found = {name: _ratio(*m, level) for name, m in moments.items()}
    if several:
        count = len(moments)
        error = math.sqrt(sum(e**2 for _, e, _ in moments.values())) / count
        # Welch and Satterthwaite's degrees of freedom of the sum.
        spread = sum(e**4 / df for _, e, df in moments.values())
        df = sum(e**2 for _, e, _ in moments.values()) ** 2 / spread if spread else math.inf
        found[MEAN] = _ratio(fmean(m for m, _, _ in moments.values()), error, df, level)
    return found


def over_problems(ratios: Sequence[float], *, confidence: float = 0.99) -> Ratio:
    """Give the geometric mean of single ratios, with the interval that their scatter allows."""
    logs = [math.log(ratio) for ratio in ratios]
    if len(logs) < 2:
        raise ValueError(f"{len(logs)} problems: 2 at least")
    return _ratio(fmean(logs), stdev(logs) / math.sqrt(len(logs)), len(logs) - 1, 1 - confidence)


def _trimmed(values: Sequence[float]) -> tuple[float, float, float]:
    """Trimmed mean, its standard error, and degrees of freedom."""
    ordered = sorted(values)
    count, cut = len(ordered), int(TRIM * len(ordered))
    kept = ordered[cut : count - cut]
    winsorized = [kept[0]] * cut + kept + [kept[-1]] * cut
    error = stdev(winsorized) / ((1 - 2 * cut / count) * math.sqrt(count))
    return fmean(kept), error, len(kept) - 1


def _ratio(mean: float, error: float, df: float, level: float) -> Ratio:
    """The interval each end of which is beyond the true value with probability ``level``."""
    reach = student(1 - level, df) * error
    return Ratio(math.exp(mean), math.exp(mean - reach), math.exp(mean + reach))


@cache
def student(p: float, df: float) -> float:
    """Give the quantile of Student's t for p above 1/2, by bisection of its distribution."""
    if df > 1e4:
        return NormalDist().inv_cdf(p)
    low, high = 0.0, 1.0
    while _below(high, df) < p:
        high *= 2
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if _below(middle, df) < p else (low, middle)
    return (low + high) / 2


def _below(t: float, df: float) -> float:
    """The probability of a value below t, t >= 0: the density by Simpson's rule in atan(t)."""
    scale = math.exp(math.lgamma((df + 1) / 2) - math.lgamma(df / 2)) / math.sqrt(math.pi)
    end, steps = math.atan(t / math.sqrt(df)), 100
    # With t = sqrt(df) tan(x) the density is scale cos(x)^(df - 1).
    values = [math.cos(end * i / steps) ** (df - 1) for i in range(steps + 1)]
    inner = 4 * sum(values[1:-1:2]) + 2 * sum(values[2:-1:2])
    return 0.5 + scale * (values[0] + inner + values[-1]) * end / steps / 3
