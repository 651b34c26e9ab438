"""The kinds of data that operands hold in benchmarks/data.py, and the problems they are put into.

``python benchmarks/kinds.py`` lists them. A kind is realistic where models, solvers or statistics
multiply such data; the others are there to break a rule by which a kernel trusts 16-bit limbs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from xgemm_torch.tools.accuracy import DISTRIBUTIONS, Draw
from xgemm_torch.tools.contenders import Problem

Pair = tuple[Tensor, Tensor]
Make = Callable[[Draw, Problem], Pair]

# What a step, an attention block and a physics-informed network multiply; sizes that tiles do not
# divide; few rows; a long K, a short one.
PROBLEMS = tuple(
    Problem(f"{m}x{n}x{k}-{layout}", m, n, k, layout)
    for m, n, k, layout in (
        (1024, 1024, 1024, "NN"), (2048, 2048, 2048, "NN"), (4096, 4096, 4096, "NN"),
        (4096, 4096, 4096, "NT"), (1023, 777, 1000, "NN"), (8192, 3072, 768, "NT"),
        (3072, 768, 8192, "TN"), (1024, 768, 50257, "NN"), (50257, 768, 1024, "TN"),
        (65536, 512, 512, "NT"), (512, 512, 65536, "TN"), (65536, 2, 512, "NN"),
        (512, 2, 65536, "TN"), (64, 4096, 4096, "NT"), (8, 4096, 4096, "NT"),
        (1, 4096, 4096, "NT"), (4096, 4096, 64, "TN"), (20, 20000, 500, "NN"),
    )
)  # fmt: skip


@dataclass(frozen=True)
class Kind:
    """Data of one kind.

    Attributes:
        what: its description, in a few words.
        realistic: whether people multiply it.
        make: gives A (m, k) and B (k, n) of a problem, however its layout stores them.
    """

    what: str
    realistic: bool
    make: Make


def _known(name: str) -> Make:
    """One of the distributions of ``python -m xgemm_torch accuracy``."""
    return lambda draw, p: DISTRIBUTIONS[name].make(draw, p.m, p.n, p.k)


def _normal(draw: Draw, p: Problem) -> Pair:
    return draw.normal(p.m, p.k), draw.normal(p.k, p.n)


def _of_a(change: Callable[[Draw, Problem, Tensor], Tensor]) -> Make:
    """A normal B, and an A that ``change`` makes of a normal one."""

    def make(draw: Draw, p: Problem) -> Pair:
        a, b = _normal(draw, p)
        return change(draw, p, a), b

    return make


def _sparse(zeros: float) -> Make:
    return _of_a(lambda draw, p, a: a * (draw.uniform(0, 1, p.m, p.k) >= zeros))


def _zero_rows(draw: Draw, p: Problem) -> Pair:
    a, b = _normal(draw, p)
    a[3::8] = 0  # tokens that padding has masked
    b[:, 1::2] = 0  # an input that a network's derivative does not depend on
    return a, b


def _zeros(draw: Draw, *shape: int) -> Tensor:
    return torch.zeros(shape, device=draw.how["device"])


def _one_hot(draw: Draw, p: Problem) -> Pair:
    at = torch.randint(p.k, (p.m, 1), **draw.how)
    return _zeros(draw, p.m, p.k).scatter_(1, at, 1.0), draw.normal(p.k, p.n)


def _identity(draw: Draw, p: Problem) -> Pair:
    at = torch.arange(p.n, device=draw.how["device"])[None] % p.k
    return draw.normal(p.m, p.k), _zeros(draw, p.k, p.n).scatter_(0, at, 1.0)


def _permutation(draw: Draw, p: Problem) -> Pair:
    rows = torch.randperm(p.k, **draw.how)
    at = rows[torch.arange(p.m, device=draw.how["device"]) % p.k]
    return _zeros(draw, p.m, p.k).scatter_(1, at[:, None], 1.0), draw.normal(p.k, p.n)


def _along(p: Problem) -> int:
    """The dimension of A that a layer's outputs lie along: dY^T X has dY transposed."""
    return 0 if p.layout == "TN" else 1


def _cross_entropy(draw: Draw, p: Problem, logits: Tensor) -> Tensor:
    along = _along(p)
    samples, classes = logits.shape[1 - along], logits.shape[along]
    labels = torch.randint(classes, (samples,), **draw.how).unsqueeze(along)
    logits = 4 * logits
    # Half of the samples have been learned: the label's probability is near 1.
    learned = 24.0 * (torch.rand(labels.shape, **draw.how) < 0.5)
    logits.scatter_add_(along, labels, learned)
    minus_one = logits.new_full(labels.shape, -1.0)
    return logits.softmax(along).scatter_add_(along, labels, minus_one) / samples


def _triangle(lower: bool) -> Make:
    def change(draw: Draw, p: Problem, a: Tensor) -> Tensor:
        row, column = (torch.arange(size, device=a.device) for size in (p.m, p.k))
        where, diagonal = column[None] * p.m, (row * p.k)[:, None]
        return a * (where <= diagonal if lower else where >= diagonal)

    return _of_a(change)


def _gelu_gradient(draw: Draw, p: Problem, a: Tensor) -> Tensor:
    x = 2 * draw.normal(p.m, p.k)
    density = torch.exp(-0.5 * x.square()) / math.sqrt(2 * math.pi)
    return a * (torch.special.ndtr(x) + x * density)


def _tanh_second(draw: Draw, p: Problem) -> Pair:
    """Second derivatives of a network with tanh, 1e-8 to 1e-14 from point to point."""
    a, b = _normal(draw, p)
    t = torch.tanh(2 * draw.normal(p.m, p.k))
    points = (1, p.k) if p.layout == "TN" else (p.m, 1)
    b[:, 1::2] = 0  # u does not depend on t twice
    return a * (-2 * t * (1 - t * t)) * 10 ** draw.uniform(-14, -8, *points), b


def _large_feature(draw: Draw, p: Problem, a: Tensor) -> Tensor:
    a[:, -1] *= 1e6
    return a


def _momentum(draw: Draw, p: Problem, a: Tensor) -> Tensor:
    """A moving average, 0.9 a step, of gradients that are there in one step of twenty."""
    age = torch.floor(torch.log(1 - draw.uniform(0, 1, p.m, p.k)) / math.log(0.95))
    return a * torch.exp(math.log(0.9) * age)


def _lognormal(*shape: int, draw: Draw) -> Tensor:
    return draw.normal(*shape).sign() * torch.exp(4 * draw.normal(*shape))


def _lognormals(draw: Draw, p: Problem) -> Pair:
    return _lognormal(p.m, p.k, draw=draw), _lognormal(p.k, p.n, draw=draw)


def _outlier(draw: Draw, p: Problem, a: Tensor) -> Tensor:
    at = torch.randint(p.k, (p.m, 1), **draw.how)
    return a.scatter_(1, at, 2.0**30)


def _log_uniform(reach: float) -> Make:
    def make(draw: Draw, p: Problem) -> Pair:
        a, b = (x.sign() * torch.exp2(draw.uniform(-reach, reach, *x.shape))
                for x in _normal(draw, p))  # fmt: skip
        return a, b

    return make


def _graded(draw: Draw, p: Problem) -> Pair:
    a, b = _normal(draw, p)
    scale = draw.powers(30, p.k)
    return (a * scale).float(), (b / scale[:, None]).float()


def _tiny_row(draw: Draw, p: Problem, a: Tensor) -> Tensor:
    a[0] *= 1e-30
    return a


def _far_apart(draw: Draw, p: Problem) -> Pair:
    a, b = _normal(draw, p)
    return a * 1e30, b * 1e-30


def _one(value: float) -> Make:
    def change(draw: Draw, p: Problem, a: Tensor) -> Tensor:
        a[p.m // 2, p.k // 2] = value
        return a

    return _of_a(change)


KINDS: dict[str, Kind] = {
    "normal": Kind("standard normal", True, _normal),
    "uniform": Kind("uniform in [0, 1)", True, _known("uniform")),
    "relu": Kind("A normal, its negative half zero", True, _of_a(lambda draw, p, a: a.relu())),
    "relu-x-relu": Kind("both normal, their negative half zero", True, _known("relu")),
    "zeros-95": Kind("A with 95% zeros", True, _sparse(0.95)),
    "zeros-99.9": Kind("A with 99.9% zeros", True, _sparse(0.999)),
    "zero-rows": Kind("zero: an eighth of A's rows, half of B's columns", True, _zero_rows),
    "one-hot": Kind("A's rows one-hot", True, _one_hot),
    "identity": Kind("B an identity, repeated or cut", True, _identity),
    "permutation": Kind("A a permutation, repeated or cut", True, _permutation),
    "cross-entropy": Kind("A (softmax - one-hot) / samples, peaked", True, _of_a(_cross_entropy)),
    "softmax": Kind(
        "A softmax over K of logits of sigma 4", True,
        _of_a(lambda draw, p, a: (4 * a).softmax(1)),
    ),
    "lower-triangle": Kind("A normal below its diagonal, zero above", True, _triangle(True)),
    "upper-triangle": Kind("A normal above its diagonal, zero below", True, _triangle(False)),
    "gelu-gradient": Kind("A normal times gelu'(2 normal)", True, _of_a(_gelu_gradient)),
    "tanh-second": Kind("A 1e-8 to 1e-14 by point, zero columns in B", True, _tanh_second),
    "large-feature": Kind("A's last column 1e6 times the others", True, _of_a(_large_feature)),
    "momentum": Kind("A a moving average of rare gradients", True, _of_a(_momentum)),
    "one-nan": Kind("A normal with one NaN", True, _one(float("nan"))),
    "outlier": Kind("one element of each row of A 2^30", False, _of_a(_outlier)),
    "lognormal": Kind(
        "A lognormal, sigma 4", False, _of_a(lambda draw, p, a: _lognormal(*a.shape, draw=draw))
    ),
    "lognormals": Kind("both lognormal, sigma 4", False, _lognormals),
    "binades-40": Kind("both log-uniform, 2^-20 to 2^20", False, _log_uniform(20)),
    "binades-80": Kind("both log-uniform, 2^-40 to 2^40", False, _log_uniform(40)),
    "scaled": Kind("A's rows, B's columns over 2^-40 to 2^40", False, _known("scaled")),
    "graded": Kind("A's columns over 2^-30 to 2^30, B's rows back", False, _graded),
    "tiny-row": Kind("A's first row times 1e-30", False, _of_a(_tiny_row)),
    "far-apart": Kind("A times 1e30, B times 1e-30", False, _far_apart),
    "subnormal": Kind("A subnormal, results not", False, _known("subnormal")),
    "underflow": Kind("every product subnormal", False, _known("underflow")),
    "flt-max": Kind("A up to FLT_MAX, results below", False, _known("largest")),
    "one-inf": Kind("A normal with one infinity", False, _one(float("inf"))),
    "all-nan": Kind(
        "A NaN throughout", False, _of_a(lambda draw, p, a: torch.full_like(a, float("nan")))
    ),
}  # fmt: skip


def operands(name: str, p: Problem, device: str = "cuda", seed: int = 0) -> Pair:
    """A and B of a kind as the problem's layout stores them; random by kind, problem and seed."""
    draw = Draw(device, seed + 100 * list(KINDS).index(name))
    a, b = KINDS[name].make(draw, p)
    return (
        a.t().contiguous() if p.layout[0] == "T" else a.contiguous(),
        b.t().contiguous() if p.layout[1] == "T" else b.contiguous(),
    )


if __name__ == "__main__":
    for name, kind in KINDS.items():
        print(f"{name:16} {'realistic' if kind.realistic else 'exotic':10} {kind.what}")
    for problem in PROBLEMS:
        print(f"{problem.label:24} {2e-9 * problem.m * problem.n * problem.k:9.3f} GFLOP")
