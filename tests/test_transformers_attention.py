"""transformers' models with our attention, by its name in their config, and back."""

from __future__ import annotations

import copy
import io
import pickle
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from problems import same_bits
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import xgemm_torch
from xgemm_torch import attention, transformers_attention

transformers = pytest.importorskip("transformers")
if not hasattr(transformers, "AttentionMaskInterface"):
    pytest.skip("this transformers has no table of masks", allow_module_level=True)

FORWARD = torch.ops.xgemm.attention_forward.default
BACKWARD = torch.ops.xgemm.attention_backward.default
SHAPE = {"hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 2, "vocab_size": 40}
IDS = torch.arange(24).view(2, 12) * 7 % 40
PADDED = torch.ones(2, 12, dtype=torch.long)
PADDED[1, 9:] = 0


def llama(**more: Any) -> nn.Module:
    config = transformers.LlamaConfig(
        **SHAPE, intermediate_size=64, num_key_value_heads=2, max_position_embeddings=32, **more
    )
    return transformers.LlamaForCausalLM(config)


def gpt2(**more: Any) -> nn.Module:
    none = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, **more}
    config = transformers.GPT2Config(n_embd=32, n_head=4, n_layer=2, vocab_size=40, **none)
    return transformers.GPT2LMHeadModel(config)


def bert(**more: Any) -> nn.Module:
    none = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, **more}
    return transformers.BertForMaskedLM(
        transformers.BertConfig(**SHAPE, intermediate_size=64, max_position_embeddings=32, **none)
    )


MODELS: dict[str, Callable[..., nn.Module]] = {"llama": llama, "gpt2": gpt2, "bert": bert}
on_every_model = pytest.mark.parametrize("name", MODELS)


def model(name: str, **more: Any) -> nn.Module:
    torch.manual_seed(0)
    return MODELS[name](**more)


class Counts(TorchDispatchMode):
    """How often each operator ran."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: dict[Any, int] = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.calls[func] = self.calls.get(func, 0) + 1
        return func(*args, **kwargs or {})


def step(m: nn.Module, **inputs: Any) -> tuple[list[Tensor], dict[Any, int]]:
    """Logits and all gradients, and what ran for them."""
    m.zero_grad()
    with Counts() as counts:
        logits = m(input_ids=IDS, **inputs).logits
        logits.square().mean().backward()
    return [logits, *(p.grad for p in m.parameters() if p.grad is not None)], counts.calls


@on_every_model
@pytest.mark.parametrize("mask", [None, PADDED], ids=["whole", "padded"])
def test_a_step(name, mask, kernels_of_attention):
    """Outputs and gradients of every parameter, by one kernel forward and one backward a layer."""
    stock, converted = model(name), model(name)
    report = xgemm_torch.convert(converted, filter_fn=lambda *_: False, attention=True)
    assert [row.reason for row in report.swapped] == ["its attention"]
    want, plain = step(stock, attention_mask=mask)
    got, calls = step(converted, attention_mask=mask)
    assert FORWARD not in plain
    assert calls[FORWARD] == calls[BACKWARD] == 2
    for x, y in zip(got, want, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("rows, keys", [(6, 6), (6, 9), (1, 9)], ids=str)
@pytest.mark.parametrize("causal", [True, False])
def test_queries_beside_a_cache(rows, keys, causal, kernels_of_attention):
    """Also without a mask: a causal prompt sees none of the places after it."""

    class Module(nn.Module):
        is_causal, num_key_value_groups = causal, 2

    torch.manual_seed(0)
    q, k, v = torch.randn(2, 4, rows, 8), torch.randn(2, 2, keys, 8), torch.randn(2, 2, keys, 8)
    transformers_attention.register()
    by = transformers.AttentionInterface()
    with Counts() as counts:
        got, weights = by["xgemm"](Module(), q, k, v, None, scaling=0.3)
    assert counts.calls[FORWARD] == 1 and weights is None
    want, _ = by["sdpa"](Module(), q, k, v, None, scaling=0.3)
    assert got.is_contiguous()
    torch.testing.assert_close(got, want, rtol=1e-5, atol=2e-6)
    for given in (True, False):  # the call's word counts before the module's
        got, want = (
            by[name](Module(), q, k, v, None, is_causal=given)[0] for name in ("xgemm", "sdpa")
        )
        torch.testing.assert_close(got, want, rtol=1e-5, atol=2e-6)


@on_every_model
def test_elsewhere_it_is_theirs(name):
    """The bits of "sdpa" on a device without the kernels."""
    converted = model(name)
    xgemm_torch.convert(converted, filter_fn=lambda *_: False, attention=True)
    got, calls = step(converted, attention_mask=PADDED)
    assert FORWARD not in calls
    assert all(map(same_bits, got, step(model(name), attention_mask=PADDED)[0]))


@pytest.mark.parametrize(
    "name, more",
    [("gpt2", {"attn_pdrop": 0.5}), ("bert", {"attention_probs_dropout_prob": 0.5}),
     ("llama", {"attention_dropout": 0.5})],
)  # fmt: skip
def test_dropout_is_ours(name, more, kernels_of_attention):
    """While the model trains, with gradients; the same weights by the same seed."""
    converted = model(name, **more)
    xgemm_torch.convert(converted, filter_fn=lambda *_: False, attention=True)
    found = []
    for seed in (3, 3, 4):
        torch.manual_seed(seed)
        results, calls = step(converted)
        assert calls[FORWARD] == calls[BACKWARD] == 2
        found.append(results[0])
    assert same_bits(found[0], found[1])
    assert not torch.equal(found[0], found[2])
    assert step(converted.eval())[1][FORWARD] == 2


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["gpt2", "bert"])
def test_dropout_is_stocks_on_a_gpu(name, kernels_of_attention):
    """By the same seed the same weights are dropped, and the rest of a step's random numbers are
    the same ones."""
    if not attention.has_kernels(torch.device("cuda")):
        pytest.skip("the kernels are made for compute capability 9.0")
    more = {
        "gpt2": {"attn_pdrop": 0.2, "resid_pdrop": 0.1},
        "bert": {"attention_probs_dropout_prob": 0.2, "hidden_dropout_prob": 0.1},
    }[name]
    stock, converted = (model(name, **more).cuda().train() for _ in range(2))
    xgemm_torch.convert(converted, filter_fn=lambda *_: False, attention=True)
    found = []
    for each in (stock, converted):
        torch.manual_seed(3)
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.EFFICIENT_ATTENTION):
            loss = each(IDS.cuda(), labels=IDS.cuda()).loss
            loss.backward()
        found.append([loss.detach(), *(p.grad for p in each.parameters())])
    for x, y in zip(*found, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-4, atol=1e-6)


def test_under_autocast_it_is_theirs(kernels_of_attention):
    stock, converted = model("gpt2"), model("gpt2")
    xgemm_torch.convert(converted, attention=True)
    with torch.autocast("cpu", torch.bfloat16):
        got, calls = step(converted)
        assert FORWARD not in calls
        want, _ = step(stock)
    assert got[0].dtype is want[0].dtype is torch.bfloat16
    assert all(same_bits(x.float(), y.float()) for x, y in zip(got, want, strict=True))


def test_small_calls_are_theirs(monkeypatch, kernels_of_attention):
    monkeypatch.setattr(attention, "_FEW_ROWS", 64)
    converted = model("llama")
    xgemm_torch.convert(converted, attention=True)
    assert FORWARD not in step(converted)[1]


def test_a_cache(kernels_of_attention):
    """A prompt, then a token at a time, of which each sees all keys."""
    stock, converted = model("llama").eval(), model("llama").eval()
    xgemm_torch.convert(converted, attention=True)
    how = {"max_new_tokens": 4, "do_sample": False, "pad_token_id": 0}
    for cache in (None, "static"):
        want, got = (
            m.generate(IDS, attention_mask=PADDED.flip(1), cache_implementation=cache, **how)
            for m in (stock, converted)
        )
        assert torch.equal(want, got)
    with torch.no_grad():
        x, y = (m(IDS).logits for m in (stock, converted))
    torch.testing.assert_close(x, y, rtol=1e-5, atol=2e-6)


def test_compiled(kernels_of_attention):
    converted = model("gpt2")
    xgemm_torch.convert(converted, attention=True)
    want = step(converted)[0]
    compiled = torch.compile(converted, backend="aot_eager", fullgraph=True)
    with torch.profiler.profile() as trace:
        logits = compiled(input_ids=IDS).logits
        logits.square().mean().backward()
    ran = {event.key: event.count for event in trace.key_averages()}
    assert ran["xgemm::attention_forward"] >= 2
    assert ran["xgemm::attention_backward"] >= 2
    torch.testing.assert_close(logits, want[0])


# ---------------------------------------------------------------------------------------------
# convert and revert


@on_every_model
def test_there_and_back(name):
    m = model(name)
    assert m.config._attn_implementation == "sdpa"
    report = xgemm_torch.convert(m, attention=True)
    assert m.config._attn_implementation == transformers_attention.NAME
    assert m.config.to_diff_dict().get("_attn_implementation") is None
    assert (len(report.swapped), report.swapped[-1].fqn) == (len(report), "")
    again = xgemm_torch.convert(m, attention=True)
    assert not again.swapped and again.skipped[-1].reason == "is one already"
    back = xgemm_torch.revert(m)
    assert back[-1].reason == "its attention is transformers' own again"
    assert m.config._attn_implementation == "sdpa"
    assert not xgemm_torch.revert(m).rows


def test_without_it_a_note_says_so():
    m = model("gpt2")
    notes = xgemm_torch.convert(m).notes
    assert m.config._attn_implementation == "sdpa"
    assert any("attention=True" in note for note in notes)
    assert not any(
        "attention=True" in note for note in xgemm_torch.convert(m, attention=True).notes
    )


def test_other_attention_is_left():
    eager = model("llama", attn_implementation="eager")
    row = xgemm_torch.convert(eager, attention=True).skipped[-1]
    assert row.reason == 'its attention is "eager", not "sdpa"'
    config = transformers.FalconConfig(**SHAPE, ffn_hidden_size=64)
    falcon = transformers.FalconForCausalLM(config)
    row = xgemm_torch.convert(falcon, attention=True).skipped[-1]
    assert row.reason == "its class calls torch's attention itself; patch() takes it"
    assert falcon.config._attn_implementation == "sdpa"


def test_models_inside_others():
    """Each config once, those of models inside, too."""

    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.left, self.right = model("bert"), model("llama")

    both = Both()
    report = xgemm_torch.convert(both, filter_fn=lambda *_: False, attention=True)
    assert [row.fqn for row in report.swapped] == ["left", "right"]
    assert [row.fqn for row in xgemm_torch.revert(both)] == ["left", "right"]


def test_an_error_leaves_all_as_it_was(monkeypatch):
    both = nn.ModuleList([model("bert"), model("llama")])
    swap, calls = transformers_attention.swap, []

    def second_fails(each: Any) -> None:
        calls.append(each)
        if len(calls) == 2:
            raise RuntimeError("no")
        swap(each)

    monkeypatch.setattr(transformers_attention, "swap", second_fails)
    with pytest.raises(RuntimeError, match="no"):
        xgemm_torch.convert(both, attention=True)
    assert [m.config._attn_implementation for m in both] == ["sdpa", "sdpa"]
    assert not any(isinstance(m, xgemm_torch.nn.Linear) for m in both.modules())


def test_copies_have_it_and_checkpoints_do_not(tmp_path):
    m = model("gpt2")
    xgemm_torch.convert(m, attention=True)
    assert copy.deepcopy(m).config._attn_implementation == "xgemm"
    assert pickle.loads(pickle.dumps(m.config))._attn_implementation == "xgemm"
    m.save_pretrained(tmp_path)
    loaded = transformers.GPT2LMHeadModel.from_pretrained(tmp_path)
    assert loaded.config._attn_implementation == "sdpa"
    name = transformers_attention.register()
    loaded = transformers.GPT2LMHeadModel.from_pretrained(tmp_path, attn_implementation=name)
    assert transformers_attention.is_swapped(loaded)
    file = io.BytesIO()
    torch.save(m.state_dict(), file)
    file.seek(0)
    loaded.load_state_dict(torch.load(file))


def test_wrong_arguments(monkeypatch):
    with pytest.raises(TypeError, match="convert: attention must be a bool, got str"):
        xgemm_torch.convert(nn.Linear(2, 2), attention="xgemm")
    monkeypatch.setitem(sys.modules, "transformers.modeling_utils", None)
    assert len(xgemm_torch.convert(nn.Linear(2, 2), attention=True)) == 1
