"""Dropout of attention's weights by torch's own random numbers, of which the kernels make bits.

The number of query i and key j of head n of a batch is word offset + (n S + i) T + j of the
Philox4x32-10 stream of a seed, as in torch's fused kernel: with the same seed and offset the same
weights are dropped, so that the backward pass of either takes the forward pass of the other.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_compiling

from . import ops

_ONE = 1 - 2.0**-25  # from here on it is 1 in float32
_MOST = 2**62  # of a random seed: randint counts to it in int64
Seeds = tuple[Tensor | None, Tensor | None]
"""A seed and an offset, int64 of one element; None without dropout."""


def takes(dropout_p: Any) -> bool:
    """Whether a probability is one that the kernels drop weights with: from 0 on, and below 1."""
    return type(dropout_p) in (int, float) and 0 <= dropout_p < _ONE


def draw(dropout_p: float, q: Tensor, keys: int) -> Seeds:
    """What a call drops weights by, from the generator of q's device.

    On a GPU the generator goes on as it does by torch's own call, and both are on the CPU, where
    the host reads them. In a CUDA graph, a trace or a transform of ``torch.func``, which has its
    say in what is random, both are on the device, the seed a random number.

    Args:
        dropout_p: the probability; 0 draws nothing.
        q: (B, H, S, D).
        keys: T.
    """
    if dropout_p == 0:
        return None, None
    if not q.is_cuda or _is_recorded():
        number = torch.randint(_MOST, (), dtype=torch.int64, device=q.device)
        return number, torch.zeros((), dtype=torch.int64, device=q.device)
    generator = torch.cuda.default_generators[q.get_device()]
    offset = generator.get_offset()
    generator.set_offset(offset + (math.prod(q.shape[:3]) * keys + 3) // 4 * 4)
    seed = generator.initial_seed()
    return torch.tensor(seed - (seed >> 63 << 64)), torch.tensor(offset)


def _is_recorded() -> bool:
    """Whether numbers of the host would be the same ones each time that the call is repeated."""
    if is_compiling() or torch._C._get_tracing_state() is not None or ops.transforming():
        return True
    key = torch._C._TorchDispatchModeKey
    if any(torch._C._get_dispatch_mode(k) is not None for k in (key.FAKE, key.PROXY)):
        return True
    return torch.cuda.is_current_stream_capturing()


_MULTIPLIERS, _KEYS, _WORD = (0xD2511F53, 0xCD9E8D57), (0x9E3779B9, 0xBB67AE85), 0xFFFFFFFF


def factors(
    dropout_p: float, seed: Tensor | None, offset: Tensor | None, shape: Sequence[int],
    device: torch.device,
) -> Tensor | None:  # fmt: skip
    """What the weights are multiplied by: 0, or 1 / (1 - p); None without dropout.

    Args:
        dropout_p: the probability.
        seed: of one element.
        offset: likewise.
        shape: (B, H, S, T).
        device: where the factors are wanted.

    Returns:
        Float32, of that shape.
    """
    if dropout_p == 0:
        return None
    assert seed is not None
    assert offset is not None
    numbers = math.prod(shape)
    first = offset.to(device)
    calls = (first >> 2) + torch.arange(numbers // 4 + 2, device=device)
    words = torch.stack(_philox(seed.to(device), calls), 1).flatten()
    mine = words[(first & 3) + torch.arange(numbers, device=device)]
    p = _single(dropout_p)
    left = mine.float() * 2.0**-32 + 2.0**-33 > p
    return left.float().mul_(_single(1 / _single(1 - p))).view(tuple(shape))


def _philox(seed: Tensor, calls: Tensor) -> list[Tensor]:
    """Four words of 32 bits a call, in int64."""
    x = [calls & _WORD, calls >> 32 & _WORD, torch.zeros_like(calls), torch.zeros_like(calls)]
    keys = [seed & _WORD, seed >> 32 & _WORD]
    for _ in range(10):
        a, b = (x[2 * i] * _MULTIPLIERS[i] for i in range(2))  # modulo 2^64: the bits are right
        x = [(b >> 32 & _WORD) ^ x[1] ^ keys[0], b & _WORD,
             (a >> 32 & _WORD) ^ x[3] ^ keys[1], a & _WORD]  # fmt: skip
        keys = [key + step & _WORD for key, step in zip(keys, _KEYS, strict=True)]
    return x


def _single(x: float) -> float:
    """The nearest float32."""
    return float(struct.unpack("f", struct.pack("f", x))[0])
