"""The tensor core's arithmetic and 16-bit floating point numbers, against models in numpy."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from xgemm_torch import _C, simt

LEAST = {torch.float16: -14, torch.bfloat16: -126}  # exponents of the smallest normal numbers
FRACTION_BITS = 25


def exponents(x: np.ndarray, least: int) -> np.ndarray:
    """Of float64 numbers; that of zero is below all."""
    found = np.maximum(np.frexp(x)[1] - 1, least)
    return np.where(x == 0, -1000, found)


def model(acc: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """One step in float64, in which every term, and their sum, is exact."""
    least = LEAST[a.dtype]
    a, b = (x.double().numpy() for x in (a, b))
    c = acc.double().numpy()
    top = (exponents(a, least)[:, None, :] + exponents(b, least)[None, :, :]).max(-1)
    top = np.maximum(np.maximum(top, exponents(c, -126)), -300)
    unit = np.ldexp(1.0, top - FRACTION_BITS)
    terms = np.trunc(a[:, None, :] * b[None, :, :] / unit[:, :, None]).sum(-1) + np.trunc(c / unit)
    exact = terms * unit
    # Truncated to 24 bits, of a subnormal number to multiples of 2^-149.
    last = np.ldexp(1.0, np.maximum(exponents(exact, -126), -126) - 23)
    return torch.from_numpy((np.trunc(exact / last) * last).astype(np.float32))


def wide(generator: torch.Generator, shape: tuple[int, int], low: int, high: int) -> torch.Tensor:
    scales = torch.randint(low, high, shape, generator=generator)
    return torch.randn(shape, generator=generator).double() * 2.0**scales


DATA = {
    "normal": lambda g, s: torch.randn(s, generator=g),
    "uniform": lambda g, s: torch.rand(s, generator=g),
    "wide": lambda g, s: wide(g, s, -12, 12),
    "subnormal": lambda g, s: wide(g, s, -26, -13),
    "sparse": lambda g, s: torch.randn(s, generator=g) * (torch.rand(s, generator=g) < 0.2),
    "far apart": lambda g, s: wide(g, s, -70, 5),
    "tiny": lambda g, s: wide(g, s, -135, -60),
}
M, N = 40, 64


@pytest.mark.parametrize("dtype", LEAST, ids=str)
@pytest.mark.parametrize("data", DATA)
def test_every_bit_of_a_step(dtype, data):
    g = torch.Generator().manual_seed(7)
    for scale in (0, 1, 2.0**-9, 2.0**9, 2.0**25, 2.0**-40, 2.0**-135):
        a, b = (DATA[data](g, (rows, 16)).to(dtype) for rows in (M, N))
        acc = (torch.randn(M, N, generator=g).double() * scale).float()
        for _ in range(2):  # the second time on what came out
            got, want = simt.mma_step(acc, a, b), model(acc, a, b)
            assert torch.equal(got.view(torch.int32), want.view(torch.int32))
            acc = got


@pytest.mark.parametrize("dtype", LEAST, ids=str)
def test_cancelling_terms_leave_what_was_not_truncated(dtype):
    a, b = torch.zeros(1, 16, dtype=dtype), torch.zeros(8, 16, dtype=dtype)
    a[0, :3] = torch.tensor([1024.0, -1024.0, 1.0])
    b[:, :2] = 1024.0
    b[:, 2] = torch.tensor([2.0**-power for power in range(8)])
    # Below 2^20 there are 25 bits: what is smaller than 2^-5 is lost, and is no term of its own.
    got = simt.mma_step(torch.zeros(1, 8), a, b)
    assert got[0].tolist() == [2.0**-power if power <= 5 else 0.0 for power in range(8)]
    assert simt.mma_step(torch.full((1, 8), -(2.0**-6)), a, b)[0, 7] == 0


@pytest.mark.parametrize("dtype", LEAST, ids=str)
def test_infinities_and_nans(dtype):
    inf, nan = float("inf"), float("nan")
    cases = [  # A's element, B's, the accumulator, the result
        (inf, 2.0, 1.0, inf),
        (inf, -2.0, 1.0, -inf),
        (inf, 0.0, 1.0, nan),
        (nan, 1.0, 1.0, nan),
        (1.0, 1.0, inf, inf),
        (-inf, 1.0, inf, nan),
        (0.0, 0.0, nan, nan),
        (1.0, 1.0, -inf, -inf),
    ]
    for x, y, c, want in cases:
        a, b = torch.ones(3, 16, dtype=dtype), torch.ones(16, 16, dtype=dtype)
        acc = torch.ones(3, 16)
        a[1, 5], b[9, 5], acc[1, 9] = x, y, c
        got = simt.mma_step(acc, a, b)
        bits = got.view(torch.int32)[1, 9].item()
        assert bits == 0x7FFFFFFF if want != want else got[1, 9].item() == want
        assert torch.equal(got[0, :9], torch.full((9,), 17.0))  # others are as ever


def test_an_overflow_is_infinite():
    a = torch.full((1, 16), 3e38, dtype=torch.bfloat16)
    assert simt.mma_step(torch.zeros(1, 8), a, torch.ones(8, 16).bfloat16()).min() == float("inf")


def test_wrong_arguments():
    a, b, acc = torch.ones(2, 16).half(), torch.ones(8, 16).half(), torch.zeros(2, 8)
    for wrong in [(acc, a, b.bfloat16()), (acc.double(), a, b), (acc, a.float(), b.float())]:
        with pytest.raises(ValueError, match="mma_step takes float16 or bfloat16"):
            simt.mma_step(*wrong)
    for wrong in [(acc, a[:, :8], b[:, :8]), (acc.T, a, b), (acc, b, a)]:
        with pytest.raises(ValueError, match=r"\(m, n\), \(m, 16\) and \(n, 16\)"):
            simt.mma_step(*wrong)
    with pytest.raises(ValueError, match="n a multiple of 8"):
        simt.mma_step(torch.zeros(2, 2), a, a)


def bits_of(halves: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(halves), dtype=torch.int16)


@pytest.mark.parametrize("dtype", LEAST, ids=str)
def test_every_16_bit_number_as_a_float(dtype):
    all_bits = torch.arange(-(2**15), 2**15).to(torch.int16)
    want = all_bits.view(dtype).float()
    told = _C.simt_from_halves(dtype == torch.bfloat16, all_bits.numpy().tobytes())
    got = torch.frombuffer(bytearray(told), dtype=torch.float32)
    number = ~want.isnan()
    assert torch.equal(got.isnan(), want.isnan())
    assert torch.equal(got.view(torch.int32)[number], want.view(torch.int32)[number])


@pytest.mark.parametrize("dtype", LEAST, ids=str)
def test_floats_are_rounded_to_nearest_even(dtype):
    every = torch.arange(-(2**15), 2**15).to(torch.int16).view(dtype).float()
    every = every[every.isfinite()].sort()[0].unique()
    half_way = ((every[1:].double() + every[:-1].double()) / 2).float()
    last = torch.finfo(dtype).max
    limit = torch.tensor([65519.996, 65520.0, 65536.0, 3.3895314e38, 3.3961776e38, 3.4e38, last])
    x = torch.cat([every, half_way, limit, -limit, torch.tensor([float("inf"), -float("inf")])])
    bits = x.view(torch.int32)
    g = torch.Generator().manual_seed(3)
    random = torch.randint(-(2**31), 2**31, (300_000,), generator=g).to(torch.int32)
    bits = torch.cat([bits, bits + 1, bits - 1, random])
    x = bits.view(torch.float32)
    x = x[~x.isnan()]
    told = _C.simt_to_halves(dtype == torch.bfloat16, x.numpy().tobytes())
    assert torch.equal(bits_of(told), x.to(dtype).view(torch.int16))


@pytest.mark.parametrize("dtype", LEAST, ids=str)
def test_nan_stays_nan(dtype):
    x = torch.tensor([0x7F800001, 0x7FC00000, 0x7FFFFFFF], dtype=torch.int32)
    x = torch.cat([x, x | -(2**31)]).view(torch.float32)
    told = _C.simt_to_halves(dtype == torch.bfloat16, x.numpy().tobytes())
    assert bits_of(told).view(dtype).isnan().all()
