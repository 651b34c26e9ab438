"""Attention by products and a softmax, each differentiable in every way that torch has.

This is what the fused kernels of `attention` have no operator for: forward mode, and the gradient
of a gradient. Matrices of S x T elements are kept, as torch keeps them where it does not fuse.

With P the probabilities and dP = grad v^T, attention's gradients are dq = scale dS k,
dk = scale dS^T q and dv = P^T grad, where dS = P (dP - delta), delta the sum of P dP over the keys.
Dropout multiplies P by its factors in the result and in dv, and dP by them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .attention_dropout import factors
from .functional import matmul

_NEVER = float("-inf")


def _scores(q: Tensor, k: Tensor, bias: Tensor | None, causal: bool, scale: float) -> Tensor:
    scores = matmul(q * scale, k.mT)
    if bias is not None:
        scores = scores + bias
    if causal:
        seen = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
        scores = scores.masked_fill(~seen, _NEVER)
    return scores


def _softmax(scores: Tensor) -> tuple[Tensor, Tensor]:
    """Over the keys, zeros for queries that see none; and which these are."""
    blind = (scores == _NEVER).all(-1, keepdim=True)
    return scores.masked_fill(blind, 0.0).softmax(-1).masked_fill(blind, 0.0), blind


def _left(
    p: Tensor, dropout_p: float = 0.0, seed: Tensor | None = None, offset: Tensor | None = None
) -> Callable[[Tensor], Tensor]:
    """What dropout leaves of matrices like p."""
    by = factors(dropout_p, seed, offset, p.shape, p.device)
    return lambda t: t if by is None else by * t


def attention(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, causal: bool, scale: float, *dropout: Any
) -> tuple[Tensor, Tensor]:
    """What the operator ``attention_forward`` gives, for the same operands.

    Args:
        q: (B, H, S, D).
        k: (B, H, T, D).
        v: (B, H, T, D).
        bias: (B, H, S, T), or None.
        causal: whether query i sees the keys 0 to i alone.
        scale: factor of the products.
        *dropout: none, or its probability, seed and offset (`attention_dropout.factors`).

    Returns:
        The result, (B, H, S, D), and the logarithms of the sums of exponentials, (B, H, S) and
        infinities up to a multiple of 32.
    """
    scores = _scores(q, k, bias, causal, scale)
    p, blind = _softmax(scores)
    lse = scores.detach().logsumexp(-1).masked_fill(blind.squeeze(-1), float("inf"))
    return matmul(_left(p, *dropout)(p), v), F.pad(lse, (0, -q.shape[-2] % 32), value=float("inf"))


def gradients(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, causal: bool, scale: float,
    *dropout: Any,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """The gradients of q, k and v, by that of the result; the others as of `attention`."""
    p, _ = _softmax(_scores(q, k, bias, causal, scale))
    left = _left(p, *dropout)
    ds = scale * _centred(left(matmul(grad, v.mT)), p)
    return matmul(ds, k), matmul(ds.mT, q), matmul(left(p).mT, grad)


def _centred(x: Tensor, p: Tensor) -> Tensor:
    """The softmax's gradient: p (x - sum of p x over the keys)."""
    return p * (x - (p * x).sum(-1, keepdim=True))


def second_derivatives(
    of_grads: Sequence[Tensor],
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, causal: bool, scale: float,
    *dropout: Any,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """The gradients of `gradients` with respect to grad, q, k and v.

    Args:
        of_grads: the gradients with respect to dq, dk and dv, of the shapes of q, k and v.
        grad: (B, H, S, D); the others as of `attention`.
        q: see there.
        k: see there.
        v: see there.
        bias: see there.
        causal: see there.
        scale: see there.
        *dropout: see there.

    Returns:
        Of the shapes of grad, q, k and v.
    """
    of_dq, of_dk, of_dv = of_grads
    p, _ = _softmax(_scores(q, k, bias, causal, scale))
    left = _left(p, *dropout)
    dp = left(matmul(grad, v.mT))
    centred = dp - (p * dp).sum(-1, keepdim=True)
    ds = p * centred
    of_ds = scale * (matmul(of_dq, k.mT) + matmul(q, of_dk.mT))
    mean = (p * of_ds).sum(-1, keepdim=True)
    of_dp = left(p * (of_ds - mean))
    of_p = left(matmul(grad, of_dv.mT)) + of_ds * centred - mean * dp
    of_scores = scale * _centred(of_p, p)
    return (
        matmul(of_dp, v) + matmul(left(p), of_dv),
        matmul(of_scores, k) + scale * matmul(ds, of_dk),
        matmul(of_scores.mT, q) + scale * matmul(ds.mT, of_dq),
        matmul(of_dp.mT, grad),
    )
