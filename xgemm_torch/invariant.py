"""Products whose bits the batch does not change, or the degree of tensor parallelism.

``precision="ieee"`` cuts K into chains by all sizes of a problem (csrc/xgemm/core/split_k.h), so
the number of rows can change a row's bits. The operator ``sgemm_invariant`` is made of products of
that precision that are too short to be cut, by rules that depend on K alone:

- K of fewer than `UNCUT` is one chain: ``sgemm`` itself.
- A longer K is cut into chains of `chain_length`, whose sums are added in order, beginning with +0.
- ``parts`` cuts K in halves first, the halves again, until there are so many parts. Each is made
  as above, and their sums are added in pairs, a binary tree. A rank of 2, 4 or 8 that has K's
  first, second, ... shard has whole subtrees: it makes them with 8 / ranks parts, and what the
  ranks add up in pairs (tensor_parallel.py) has the bits of one machine.

``parts`` has a number for each of M, N and K, since a gradient is a product along M or N, and that
is what a layer's shards may cut.

The chains are made one after another, each added to the result by the epilogue of its product, or
all at once as the matrices of one batch and then added up: a product with a row of ones adds in the
order of k, and has sgemm's epilogue. Both ways give the same bits; `_at_once` says which runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ._checks import known
from .registry import OPERATORS
from .types import Activation, Invariant

NAME = "sgemm_invariant"
"""The operator."""

PARTS = 8
"""The parts of K that "tp" adds in pairs: the most ranks."""

PARTS_OF: dict[Invariant, tuple[int, int, int]] = {
    "batch": (1, 1, 1), "tp": (PARTS, PARTS, PARTS)
}  # fmt: skip
"""The parts of M, N and K."""

UNCUT = 640
"""The least K that ``precision="ieee"`` may make in several chains."""

_LONGEST, _LENGTH, _STEP = 608, 512, 32  # of a chain; a step is a slice of the stages' main loops
# Of partial sums at a time, in bytes: as much as the limbs of an operand may take.
_MOST_BYTES = 512 << 20
# Of elements of the result, from where on a chain fills a GPU by itself, so that adding it to the
# result costs no more than adding partial sums; and from where on two chains do.
_LARGE, _LARGE_OF_TWO = 1 << 25, 1 << 21


def chain_length(k: int) -> int:
    """Of ``k``, in a chain of a product with ``invariant="batch"``; the last may be shorter.

    The fewest chains of equal length, a multiple of 32 that is at most 608, if there are such; else
    they are 512 long.
    """
    if k < UNCUT:
        return k
    fewest = -(-k // _LONGEST)
    for count in range(fewest, 2 * fewest + 1):
        if k % (_STEP * count) == 0:
            return k // count
    return _LENGTH


def check_parts(parts: Any) -> None:
    """Raise ValueError unless ``parts`` are three powers of two up to `PARTS`."""
    if len(parts) != 3 or any(part not in (1, 2, 4, PARTS) for part in parts):
        raise ValueError(f"{NAME}: parts must be three of 1, 2, 4 and {PARTS}, got {list(parts)}")


# ---------------------------------------------------------------------------------------------
# The product, of plain tensors.


_below_inplace = torch._C._AutoDispatchBelowADInplaceOrView


class _Calls:
    """The products that it is made of: by one kernel, and none of them cut."""

    def __init__(self, kernel: str) -> None:
        self.how: dict[str, Any] = {"precision": "ieee"}
        if kernel != "auto":
            self.how["kernel"] = kernel
        sgemm = OPERATORS.sgemm
        self.new: Callable[..., Tensor] = sgemm.default._op
        self.out: Callable[..., Tensor] = sgemm.out._op

    def add_chain(self, a: Tensor, b: Tensor, total: Tensor) -> None:
        self.out(a, b, total, out=total, **self.how)


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
) -> Tensor:
    """The operator's kernel for CPU and CUDA tensors; arguments as ``sgemm`` has them."""
    check_parts(parts)
    calls, pieces = _Calls(kernel), parts[2]
    if (pieces == 1 and a.shape[-2 if trans_a else -1] < UNCUT) or 0 in (*a.shape, *b.shape):
        return calls.new(
            a, b, c, alpha=alpha, beta=beta, trans_a=trans_a, trans_b=trans_b,
            activation=activation, **calls.how,
        )  # fmt: skip
    left, right = a.mT if trans_a else a, b.mT if trans_b else b
    if left.shape[-1] != right.shape[-2]:
        raise ValueError(f"{NAME}: inner sizes differ")
    if c is None and beta not in (0, 1):
        raise ValueError(f"{NAME}: beta is {beta:g} but there is no c")
    if c is not None and (c.dtype is not torch.float32 or c.device != a.device):
        raise TypeError(f"{NAME}: c must be float32, and on the device of a")
    shape: tuple[int, ...] = (left.shape[-2], right.shape[-1])
    if a.dim() == 3 or b.dim() == 3:
        shape = (*torch.broadcast_shapes(left.shape[:-2], right.shape[:-2]), *shape)
    c = None if c is None else c.expand(shape)  # or an error, for any beta
    c = None if beta == 0 else c
    if len(shape) == 3 and (right.dim() == 2 or right.shape[0] == 1) and _on_a_gpu(a):
        # One matrix of all rows: their bits are the same.
        left, right = left.reshape(-1, left.shape[-1]), right.reshape(right.shape[-2:])
        c = None if c is None else c.reshape(-1, shape[-1])
    last = _Epilogue(calls, alpha, beta, activation, c)
    with _below_inplace():
        if not _at_once(left, right, pieces):
            total = last.of_sum(_in_turn(calls, left, right, pieces))
        elif pieces == 1:
            total = _chains_at_once(calls, left, right, last)
        else:
            total = last.of_sum(_parts_at_once(calls, left, right, pieces))
    return total.view(shape) if len(shape) == 3 else total


def _on_a_gpu(t: Tensor) -> bool:
    return t.is_cuda


def _at_once(a: Tensor, b: Tensor, pieces: int) -> bool:
    """Whether all chains are one batched product; which way is quicker, not what the bits are."""
    if not _on_a_gpu(a) or a.dim() == 3 or b.dim() == 3:
        return False
    k, elements = a.shape[1], a.shape[0] * b.shape[1]
    each = chain_length(k // pieces)
    if pieces > 1 and (k % pieces or k // pieces % each):
        return False  # no views of one batch
    count = -(-k // each)
    if elements >= _LARGE or (count == 2 and elements >= _LARGE_OF_TWO):
        return False
    return pieces == 1 or 4 * elements * count <= _MOST_BYTES


class _Epilogue:
    """What ``sgemm`` does with the sum of its products: activation(alpha * sum + beta * c)."""

    def __init__(
        self, calls: _Calls, alpha: float, beta: float, activation: str, c: Tensor | None
    ) -> None:
        self.c = c  # as large as the result
        self.beta = beta
        self.out = calls.out
        self.plain = alpha == 1 and activation == "none"
        self.how: dict[str, Any] = {"precision": "ieee"}
        if not self.plain:
            self.how |= {"alpha": alpha, "activation": activation}
        if beta != 1 and c is not None:
            self.how["beta"] = beta

    def of_sum(self, total: Tensor) -> Tensor:
        """Of a sum, which is overwritten or not."""
        if self.plain:
            if self.c is None:
                return total
            # The product with beta is rounded, the sum is rounded: as with alpha = 1 there.
            return total.add_(self.c if self.beta == 1 else self.c * self.beta)
        return self.of_partial(total.view(1, -1, total.shape[-1])).view(total.shape)

    def of_partial(self, partial: Tensor) -> Tensor:
        """Of (sums, m, n), of which each element's are added in order."""
        count, m, n = partial.shape
        ones, c = _ones(partial, count), self.c
        if c is None or m == 1 or m > 16 * n:
            c = None if c is None else c.reshape(1, m * n)
            result = partial.new_empty(1, m * n)
            self.out(ones, partial.view(count, m * n), c, out=result, **self.how)
            return result.view(m, n)
        # A batch of rows, so that c may be a bias.
        result = partial.new_empty(m, 1, n)
        c = c.reshape(m, n).unsqueeze(1)
        self.out(ones, partial.transpose(0, 1), c, out=result, **self.how)
        return result.view(m, n)


def _in_turn(calls: _Calls, a: Tensor, b: Tensor, pieces: int) -> Tensor:
    """Chain after chain, and parts in pairs."""
    k = a.shape[-1]
    if pieces > 1:
        half = (k + 1) // 2
        total = _in_turn(calls, a[..., :half], b[..., :half, :], pieces // 2)
        rest = a[..., half:], b[..., half:, :]
        if k == half:  # an empty part adds nothing
            return total
        if pieces == 2 and k - half < UNCUT:
            calls.add_chain(*rest, total)
            return total
        return total.add_(_in_turn(calls, *rest, pieces // 2))
    each = chain_length(k)
    if each == k:
        return calls.new(a, b, **calls.how)
    # With the first chain added to +0 no sum is -0, as none is where a row of ones adds them up.
    zero = a.new_zeros(())
    total = calls.new(a[..., :each], b[..., :each, :], zero, **calls.how)
    for at in range(each, k, each):
        calls.add_chain(a[..., at : at + each], b[..., at : at + each, :], total)
    return total


def _chains_at_once(calls: _Calls, a: Tensor, b: Tensor, last: _Epilogue) -> Tensor:
    """All chains of K as a batch, or as many at a time as there is room for."""
    (m, k), n = a.shape, b.shape[1]
    each = chain_length(k)
    room = max(2, min(UNCUT - 2, _MOST_BYTES // (4 * m * n)))
    total: Tensor | None = None
    for at in range(0, k, each * room):
        end = min(k, at + each * room)
        before, whole = int(total is not None), (end - at) // each
        rest = at + whole * each
        partial = a.new_empty(before + whole + int(rest < end), m, n)
        if total is not None:
            partial[0].copy_(total)
        if whole:
            cuts, place = (a, b), partial
            if rest - at < k:
                cuts, place = (a[:, at:rest], b[at:rest]), partial[before : before + whole]
            calls.out(*_batch(*cuts, whole), None, out=place, **calls.how)
        if rest < end:
            calls.out(a[:, rest:end], b[rest:end], None, out=partial[-1], **calls.how)
        ends = last if end == k else _Epilogue(calls, 1.0, 1.0, "none", None)
        total = ends.of_partial(partial)
    assert total is not None
    return total


def _parts_at_once(calls: _Calls, a: Tensor, b: Tensor, pieces: int) -> Tensor:
    """All chains of all parts as a batch, then the parts in pairs."""
    (m, k), n = a.shape, b.shape[1]
    count = k // pieces // chain_length(k // pieces)
    sums = a.new_empty(pieces * count, m, n)
    calls.out(*_batch(a, b, pieces * count), None, out=sums, **calls.how)
    if count > 1:
        partial, sums = sums.view(pieces, count, m * n), a.new_empty(pieces, m, n)
        place = sums.view(pieces, 1, m * n)
        calls.out(_ones(a, count), partial, None, out=place, precision="ieee")
    while pieces > 1:
        sums, pieces = sums[0::2].add_(sums[1::2]), pieces // 2
    return sums[0]


def _batch(a: Tensor, b: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """``count`` equal cuts of K as a batch, without a copy."""
    (m, k), n = a.shape, b.shape[1]
    (of_m, of_k), (next_k, of_n) = a.stride(), b.stride()
    each = k // count
    return (
        a.as_strided((count, m, each), (each * of_k, of_m, of_k)),
        b.as_strided((count, each, n), (each * next_k, next_k, of_n)),
    )


_ROWS: dict[torch.device, Tensor] = {}


def _ones(like: Tensor, count: int) -> Tensor:
    """A row of ones. It is kept: to fill one anew would be another launch of each product."""
    row = _ROWS.get(like.device)
    if row is None:
        with torch.inference_mode(False):
            row = torch.ones(1, UNCUT, device=like.device)
        if like.is_cuda:
            if torch.cuda.is_current_stream_capturing():
                return row[:, :count]  # its memory is the graph's
            torch.cuda.current_stream(like.device).synchronize()  # another stream may read it next
        _ROWS[like.device] = row
    return row[:, :count]


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
    kept = {key: flags[key] for key in ("alpha", "kernel") if key in flags}
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
