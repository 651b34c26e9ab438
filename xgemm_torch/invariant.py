"""Products whose bits the batch does not change, or the degree of tensor parallelism.

``precision="ieee"`` cuts K into chains by all sizes of a problem (csrc/xgemm/core/split_k.h), so
the number of rows can change a row's bits; with ``"fp32"`` also their elements can. The operator
``sgemm_invariant`` cuts K, for the former, by K and N:

- into chains of `chain_length`, whose sums are added in order;
- ``parts`` cuts K in halves first, the halves again, until there are so many parts. Each is made
  as above, but by K alone, for ranks may cut N; their sums are added in pairs, a binary tree. A
  rank of 2, 4 or 8 that has K's first, second, ... shard has whole subtrees: it makes them with
  8 / ranks parts, and what the ranks add up in pairs (tensor_parallel.py) has the bits of one
  machine.

``parts`` has a number for each of M, N and K, since a gradient is a product along M or N, and that
is what a layer's shards may cut.

One call of the operator ``sgemm`` makes all chains, whose length it takes (``chain``), by a stage
that makes several. Where their sums would take much memory, or the stage makes one alone, it is a
call for each chain, which the epilogue adds to the result. The bits are the same.

With ``precision="fp32"`` a stage that can do so (csrc/xgemm/mainloop/invariant_wgmma.h) makes each
element of limbs, or as one chain, as its row and its column alone ask. Where there is no such
stage, on a CPU and below compute capability 9.0, the chains above are the result.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ._checks import check_batch_invariant, known
from .registry import OPERATORS, stages
from .types import Activation, Invariant

NAME = "sgemm_invariant"
"""The operator."""

PARTS = 8
"""The parts of K that "tp" adds in pairs: the most ranks."""

PARTS_OF: dict[Invariant, tuple[int, int, int]] = {
    "batch": (1, 1, 1), "tp": (PARTS, PARTS, PARTS)
}  # fmt: skip
"""The parts of M, N and K."""

LONGEST, STEP = 1024, 32
"""The most of K in a chain, and what chains but the last are multiples of."""

_NARROW, _LONGEST_OF_NARROW = 2048, 512  # columns

# Of the sums of chains, in bytes: as much as the limbs of an operand may take at a time. On an H100
# one call takes 0.5 to 1.04 of the time of a call for each chain.
_MOST_BYTES = 512 << 20
_SPLITS = frozenset(["auto", *(stage.name for stage in stages() if stage.split_k)])


def chain_length(k: int, n: int | None = None) -> int:
    """Of ``k``, in a chain of a product with ``invariant="batch"``; the last may be shorter.

    One chain up to 1024. Else the fewest of equal length, a multiple of 32 that is at most 1024, or
    512 where there are fewer than 2048 columns: those have too few longer chains to keep a GPU
    busy, while in a wide product each chain reads and writes the result once more. If there are no
    such, they are as long as they may be.

    Args:
        k: of the product.
        n: columns of the result; None where the length is not to depend on them, as with "tp".
    """
    if k <= LONGEST:
        return k
    longest = _LONGEST_OF_NARROW if n is not None and n < _NARROW else LONGEST
    fewest = -(-k // longest)
    for count in range(fewest, 2 * fewest + 1):
        if k % (STEP * count) == 0:
            return k // count
    return longest


def in_pairs(t: Tensor) -> Tensor:
    """Add up along the first dimension, of 2, 4 or 8, into memory of its own; a 1 is a view."""
    while t.shape[0] > 1:
        t = t[0::2] + t[1::2]
    return t[0]


def check_parts(parts: Any) -> None:
    """Raise ValueError unless ``parts`` are three powers of two up to `PARTS`."""
    if len(parts) != 3 or any(part not in (1, 2, 4, PARTS) for part in parts):
        raise ValueError(f"{NAME}: parts must be three of 1, 2, 4 and {PARTS}, got {list(parts)}")


# ---------------------------------------------------------------------------------------------
# The product, of plain tensors.


_below_inplace = torch._C._AutoDispatchBelowADInplaceOrView


class _Calls:
    """The products that it is made of: by one kernel, in chains of a length that is given."""

    def __init__(self, kernel: str, by_columns: bool) -> None:
        self.by_columns = by_columns  # whether N may decide how long chains are
        self.how: dict[str, Any] = {"precision": "ieee"}
        if kernel != "auto":
            self.how["kernel"] = kernel
        self.splits = kernel in _SPLITS
        sgemm = OPERATORS.sgemm
        self.new: Callable[..., Tensor] = sgemm.default._op
        self.out: Callable[..., Tensor] = sgemm.out._op

    def chain(self, k: int, n: int) -> int:
        return chain_length(k, n if self.by_columns else None)

    def in_one(self, a: Tensor, b: Tensor, chain: int) -> bool:
        """Whether one call makes all chains; the bits are the same."""
        k = a.shape[-1]
        if chain >= k:
            return True
        if not self.splits:
            return False
        batch = max(t.shape[0] if t.dim() == 3 else 1 for t in (a, b))
        return 4 * batch * a.shape[-2] * b.shape[-1] * -(-k // chain) <= _MOST_BYTES

    def sum(self, a: Tensor, b: Tensor) -> Tensor:
        """The product of all of K."""
        k = a.shape[-1]
        chain = self.chain(k, b.shape[-1])
        if self.in_one(a, b, chain):
            return self.new(a, b, chain=chain, **self.how)
        total = self.new(a[..., :chain], b[..., :chain, :], chain=chain, **self.how)
        for at in range(chain, k, chain):
            part = a[..., at : at + chain], b[..., at : at + chain, :]
            self.out(*part, total, out=total, chain=chain, **self.how)
        return total

    def tree(self, a: Tensor, b: Tensor, pieces: int) -> Tensor:
        """The sum of so many parts of K, in pairs."""
        k = a.shape[-1]
        if pieces == 1:
            return self.sum(a, b)
        half = (k + 1) // 2
        total = self.tree(a[..., :half], b[..., :half, :], pieces // 2)
        if k == half:  # an empty part adds nothing
            return total
        return total.add_(self.tree(a[..., half:], b[..., half:, :], pieces // 2))

    def tree_at_once(self, a: Tensor, b: Tensor, pieces: int) -> Tensor | None:
        """The same, the parts as a batch; None where they are none, or too large."""
        k, elements = a.shape[-1], a.shape[-2] * b.shape[-1]
        if a.dim() == 3 or b.dim() == 3 or k % pieces or 4 * elements * pieces > _MOST_BYTES:
            return None
        x, y = _batch(a, b, pieces)
        chain = self.chain(k // pieces, b.shape[-1])
        if not self.in_one(x, y, chain):
            return None
        return in_pairs(self.new(x, y, chain=chain, **self.how))


def product(
    a: Tensor,
    b: Tensor,
    c: Tensor | None = None,
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
    trans_a: bool = False,
    trans_b: bool = False,
    kernel: str = "auto",
    activation: Activation = "none",
    parts: Sequence[int] = (1, 1, 1),
    precision: str | None = None,
    packed: Tensor | None = None,
) -> Tensor:
    """The operator's kernel for CPU and CUDA tensors; arguments as ``sgemm`` has them.

    No ``precision`` is "ieee".
    """
    check_parts(parts)
    if precision not in (None, "ieee", "fp32"):
        raise ValueError(f"{NAME}: precision must be 'fp32' or 'ieee', got '{precision}'")
    if precision == "fp32":
        if tuple(parts) != PARTS_OF["batch"]:
            raise ValueError(f"{NAME}: parts are of precision='ieee'")
        check_batch_invariant(NAME, kernel, strict=True)
        if stage := _stage(a.device, kernel):
            ends = {"alpha": alpha, "beta": beta, "activation": activation}
            return _of_limbs(stage, a, b, c, trans_a, trans_b, {"packed": packed, **ends})
    calls, pieces = _Calls(kernel, tuple(parts) == PARTS_OF["batch"]), parts[2]
    ends = {"alpha": alpha, "beta": beta, "activation": activation}
    left, right = a.mT if trans_a else a, b.mT if trans_b else b
    empty = 0 in (*a.shape, *b.shape)
    fits = left.dim() >= 2 <= right.dim() and left.shape[-1] == right.shape[-2]
    how: dict[str, Any] = {"trans_a": trans_a, "trans_b": trans_b, **ends, **calls.how}
    if not fits or empty:  # zeros, or what sgemm says is wrong
        return calls.new(a, b, c, **how)
    if pieces == 1:
        k = left.shape[-1]
        chain = calls.chain(k, right.shape[-1])
        # A sum of several chains that is -0 is +0 to `_ended`, whichever way they are made.
        whole = chain >= k or (alpha == 1 and activation == "none")
        if whole and calls.in_one(left, right, chain):
            return calls.new(a, b, c, chain=chain, **how)
    if c is None and beta not in (0, 1):
        raise ValueError(f"{NAME}: beta is {beta:g} but there is no c")
    if c is not None and (c.dtype is not torch.float32 or c.device != a.device):
        raise TypeError(f"{NAME}: c must be float32, and on the device of a")
    shape: tuple[int, ...] = (left.shape[-2], right.shape[-1])
    if a.dim() == 3 or b.dim() == 3:
        shape = (*torch.broadcast_shapes(left.shape[:-2], right.shape[:-2]), *shape)
    c = None if c is None else c.expand(shape)  # or an error, for any beta
    c = None if beta == 0 else c
    if len(shape) == 3 and (right.dim() == 2 or right.shape[0] == 1) and a.is_cuda:
        # One matrix of all rows: their bits are the same.
        left, right = left.reshape(-1, left.shape[-1]), right.reshape(right.shape[-2:])
        c = None if c is None else c.reshape(-1, shape[-1])
    with _below_inplace():
        total = None if pieces == 1 else calls.tree_at_once(left, right, pieces)
        if total is None:
            total = calls.tree(left, right, pieces)
        total = _ended(calls, total, c, alpha, beta, activation)
    return total.view(shape) if len(shape) == 3 else total


@functools.cache
def _stage(device: torch.device, kernel: str) -> str | None:
    """The stage that makes a row of limbs by itself; None where the chains of "ieee" do."""
    those = [stage for stage in stages() if stage.batch_invariant]
    if kernel != "auto":
        return next((kernel for stage in those if stage.name == kernel), None)
    if device.type != "cuda":
        return None
    major, minor = torch.cuda.get_device_capability(device)
    sm = 10 * major + minor
    for stage in those:
        if stage.cuda and stage.min_sm <= sm and (not stage.max_sm or sm <= stage.max_sm):
            return stage.name
    return None


def _of_limbs(
    stage: str, a: Tensor, b: Tensor, c: Tensor | None, trans_a: bool, trans_b: bool,
    how: dict[str, Any],
) -> Tensor:  # fmt: skip
    """The product by ``stage``, which walks a's rows along k, however they lie."""
    how = {"kernel": stage, "batch_invariant": True, "trans_b": trans_b, **how}
    new: Callable[..., Tensor] = OPERATORS.sgemm.default._op
    left = a.mT if trans_a and a.dim() >= 2 else a
    if left.dim() < 2 or b.dim() not in (2, 3) or 0 in (*a.shape, *b.shape):
        return new(a, b, c, trans_a=trans_a, **how)  # zeros, or what is wrong
    with _below_inplace():
        if left.dim() == 3 and b.dim() == 2 and c is None:
            # One matrix of all rows: their bits are the same, and tiles are fewer.
            rows = left.reshape(-1, left.shape[-1])
            return new(_along_k(rows), b, None, **how).view(*left.shape[:2], -1)
        return new(_along_k(left), b, c, **how)


def _along_k(rows: Tensor) -> Tensor:
    """``rows``, copied where a stage would read their lines once for each of many rows."""
    return rows if rows.stride(-1) == 1 or rows.shape[-1] == 1 else rows.contiguous()


def _ended(
    calls: _Calls, total: Tensor, c: Tensor | None, alpha: float, beta: float, activation: str
) -> Tensor:
    """What ``sgemm`` does with a sum of products, which is overwritten or not."""
    if alpha == 1 and activation == "none":
        if c is None:
            return total
        # The product with beta is rounded, the sum is rounded: as with alpha = 1 there.
        return total.add_(c if beta == 1 else c * beta)
    flat = total.view(1, -1)  # the product with a one has sgemm's epilogue
    one, addend = flat.new_ones(1, 1), None if c is None else c.reshape(1, -1)
    how = {"alpha": alpha, "activation": activation, **({} if c is None else {"beta": beta})}
    return calls.new(one, flat, addend, precision="ieee", **how).view(total.shape)


def _batch(a: Tensor, b: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """``count`` equal cuts of K as a batch, without a copy."""
    (m, k), n = a.shape, b.shape[1]
    (of_m, of_k), (next_k, of_n) = a.stride(), b.stride()
    each = k // count
    return (
        a.as_strided((count, m, each), (each * of_k, of_m, of_k)),
        b.as_strided((count, each, n), (each * next_k, next_k, of_n)),
    )


# ---------------------------------------------------------------------------------------------
# Its gradients, which are such products again.


def gradients(
    ctx: Any, grad: Tensor, a: Tensor, b: Tensor, product: Callable[..., Tensor]
) -> tuple[Tensor | None, ...]:
    """The gradients of a, b and c that are needed, each by such products.

    No sum is torch's, whose order depends on sizes and device. Batches that share an operand, or a
    bias that rows share, are a longer K.

    Args:
        ctx: what ``ops`` has kept of the call.
        grad: the result's gradient.
        a: the operand, None where b needs no gradient.
        b: likewise.
        product: ``ops._product``.

    Returns:
        A gradient for each of a, b and c, or None.
    """
    flags = ctx.flags
    ta, tb = flags.get("trans_a", False), flags.get("trans_b", False)
    beta, (of_m, of_n, of_k) = flags.get("beta", 1.0), flags.get("parts", (1, 1, 1))
    kept = {key: flags[key] for key in ("alpha", "kernel", "precision") if key in flags}
    a_shape, b_shape, c_shape = ctx.shapes
    _, need_a, need_b, need_c, _, _ = ctx.needs_input_grad

    def times(x: Tensor, y: Tensor, m: int, n: int, k: int) -> Tensor:
        return product(NAME, x, y, parts=(m, n, k), **kept)

    def shared(shape: Sequence[Any]) -> bool:
        return grad.dim() == 3 and (len(shape) == 2 or known(shape[0] == 1))

    def long(t: Tensor) -> Tensor:
        """The matrices of a batch one below the other."""
        return t.expand(grad.shape[0], *t.shape[-2:]).flatten(0, 1)

    grad_a = grad_b = grad_c = None
    if need_a:
        right = b if tb else b.mT  # (n, k)
        if shared(a_shape):
            grad_a = times(long(grad.mT).mT, long(right), of_m, of_k, of_n)
        else:
            grad_a = times(grad, right, of_m, of_k, of_n)
        grad_a = (grad_a.mT if ta else grad_a).reshape(a_shape)
    if need_b:
        left = a if ta else a.mT  # (k, m)
        if shared(b_shape):
            grad_b = times(long(left.mT).mT, long(grad), of_k, of_n, of_m)
        else:
            grad_b = times(left, grad, of_k, of_n, of_m)
        grad_b = (grad_b.mT if tb else grad_b).reshape(b_shape)
    if need_c and beta == 0:
        grad_c = grad.new_zeros(c_shape)
    elif need_c:
        grad_c = summed(grad, c_shape, (of_m, of_n), product)
        if beta != 1:
            grad_c = grad_c * beta
    return grad_a, grad_b, grad_c


def summed(
    grad: Tensor, shape: Sequence[Any], parts: tuple[int, int], product: Callable[..., Tensor]
) -> Tensor:
    """Sum ``grad`` over what was broadcast from ``shape``, by products with ones.

    Args:
        grad: (m, n) or (batch, m, n).
        shape: as of ``c`` in ``sgemm``.
        parts: those of m and of n.
        product: ``ops._product``.

    Returns:
        A tensor of ``shape``.
    """
    sizes = (*(1,) * (grad.dim() - len(shape)), *shape)
    *batch, m, n = (
        known(size == 1) and not known(have == 1)
        for size, have in zip(sizes, grad.shape, strict=True)
    )

    def of_rows(t: Tensor, pieces: int) -> Tensor:
        ones = t.new_ones(1, t.shape[-2])
        return product(NAME, ones, t, parts=(1, parts[1], pieces))

    if batch == [True]:
        if m:
            grad = of_rows(grad.flatten(0, 1), parts[0])
            m = False
        else:
            grad = of_rows(grad.flatten(1), 1).view(grad.shape[1:])
    if m:
        grad = of_rows(grad, parts[0])
    if n:
        ones = grad.new_ones(grad.shape[-1], 1)
        grad = product(NAME, grad, ones, parts=(parts[0], 1, parts[1]))
    return grad.reshape(tuple(shape))
