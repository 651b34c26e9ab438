"""Models of transformers, for steps.py to time.

``convert(attention=True)`` reaches all products of GPT-2 and Llama. Mixtral keeps the matrices of a
layer's experts in one Parameter, which ``_grouped_mm`` multiplies (transformers 5; in 4.5x each
expert has Linear layers of its own), and Falcon's layers are ``FalconLinear``, a class of its own:
both are converted, ``convert(types=)``, inside ``patch()``. The sizes are small ones of the
families; weights are random, and nothing is downloaded.
"""

from __future__ import annotations

import importlib.metadata
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn
from workloads import Batch, Sizes, Workload, tokens

PACKAGE = "transformers"


def mixtral(s: Sizes) -> nn.Module:
    """Two of ``experts`` gated MLPs for each token; their products by groups where that exists."""
    import transformers

    model = transformers.MixtralForCausalLM(
        transformers.MixtralConfig(
            vocab_size=s.classes, hidden_size=s.width, intermediate_size=s.inner,
            num_hidden_layers=s.layers, num_attention_heads=s.heads,
            num_key_value_heads=s.heads // 2, num_local_experts=s.experts, num_experts_per_tok=2,
            max_position_embeddings=s.length, use_cache=False,
        )
    )  # fmt: skip
    if hasattr(model, "set_experts_implementation"):
        model.set_experts_implementation("grouped_mm")
    return model


def falcon(s: Sizes) -> nn.Module:
    """Falcon-7B's layers: one head of keys and values, attention and MLP beside each other."""
    import transformers

    return transformers.FalconForCausalLM(
        transformers.FalconConfig(
            vocab_size=s.classes, hidden_size=s.width, ffn_hidden_size=s.inner,
            num_hidden_layers=s.layers, num_attention_heads=s.heads, multi_query=True,
            parallel_attn=True, new_decoder_architecture=False, alibi=False, bias=False,
            max_position_embeddings=s.length, use_cache=False,
        )
    )  # fmt: skip


def gpt2(s: Sizes) -> nn.Module:
    """GPT-2, whose layers are transformers' ``Conv1D``."""
    import transformers

    return transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            vocab_size=s.classes, n_embd=s.width, n_inner=s.inner, n_layer=s.layers,
            n_head=s.heads, n_positions=s.length, resid_pdrop=s.dropout, embd_pdrop=s.dropout,
            attn_pdrop=s.dropout, use_cache=False,
        )
    )  # fmt: skip


def bert(s: Sizes) -> nn.Module:
    """BERT, which predicts words that are hidden."""
    import transformers

    return transformers.BertForMaskedLM(
        transformers.BertConfig(
            vocab_size=s.classes, hidden_size=s.width, intermediate_size=s.inner,
            num_hidden_layers=s.layers, num_attention_heads=s.heads,
            max_position_embeddings=s.length, hidden_dropout_prob=s.dropout,
            attention_probs_dropout_prob=s.dropout,
        )
    )  # fmt: skip


def llama(s: Sizes) -> nn.Module:
    """Llama with a head of keys and values for each four of queries."""
    import transformers

    return transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=s.classes, hidden_size=s.width, intermediate_size=s.inner,
            num_hidden_layers=s.layers, num_attention_heads=s.heads,
            num_key_value_heads=s.heads // 4, max_position_embeddings=s.length, use_cache=False,
        )
    )  # fmt: skip


def next_token(model: Any, batch: Batch) -> Tensor:
    """Mean cross entropy of each position's token, the next one or a hidden one."""
    logits = model(input_ids=batch[0]).logits
    return F.cross_entropy(logits.flatten(0, -2), batch[1].flatten())


def unavailable(workload: Workload) -> str:
    """Why a library's model cannot be made here, "" where it can, and of those made here."""
    if not workload.package:
        return ""
    try:
        workload.make(workload.tiny)
    except Exception as problem:  # it imports what it likes, and its names come and go
        line = str(problem).strip().partition("\n")[0]
        return f"{workload.package}: {type(problem).__name__}: {line}"
    return ""


def library(workload: Workload, model: Any) -> str:
    """Name a library's version, and how its model multiplies by experts."""
    experts = getattr(getattr(model, "config", None), "_experts_implementation", None)
    grouped = f", experts by {experts}" if workload.sizes.experts and experts else ""
    return f"{workload.package} {importlib.metadata.version(workload.package)}{grouped}"


MODELS = {
    w.name: w
    for w in (
        Workload("mixtral", "Mixtral 0.8B (8 layers of 1024, 8 experts of 3584), 4 x 1024 tokens",
                 Sizes(4, 1024, 8, 1024, 3584, 16, 32000, experts=8),
                 Sizes(2, 8, 2, 32, 48, 4, 61, experts=4),
                 mixtral, tokens, next_token, PACKAGE),
        Workload("falcon", "Falcon 0.4B (8 layers of 2048, one head of keys), 4 x 1024 tokens",
                 Sizes(4, 1024, 8, 2048, 8192, 16, 32000), Sizes(2, 8, 2, 32, 64, 4, 61),
                 falcon, tokens, next_token, PACKAGE,
                 "transformers.models.falcon.modeling_falcon.FalconLinear"),
        Workload("gpt2-hf", "GPT-2 124M, 8 x 1024 tokens",
                 Sizes(8, 1024, 12, 768, 3072, 12, 50257), Sizes(2, 8, 2, 32, 64, 4, 61),
                 gpt2, tokens, next_token, PACKAGE, named_attention=True),
        Workload("gpt2-hf-dropout", "GPT-2 124M with dropout of 0.1, 8 x 1024 tokens",
                 Sizes(8, 1024, 12, 768, 3072, 12, 50257, dropout=0.1),
                 Sizes(2, 8, 2, 32, 64, 4, 61, dropout=0.1),
                 gpt2, tokens, next_token, PACKAGE, named_attention=True),
        Workload("bert-hf-dropout", "BERT-base with dropout of 0.1, 32 x 512 tokens",
                 Sizes(32, 512, 12, 768, 3072, 12, 30522, dropout=0.1),
                 Sizes(2, 8, 2, 32, 64, 4, 61, dropout=0.1),
                 bert, tokens, next_token, PACKAGE, named_attention=True),
        Workload("llama-gqa", "Llama 0.3B (16 layers of 1024, 16 heads of 4 of keys), "
                 "4 x 2048 tokens",
                 Sizes(4, 2048, 16, 1024, 2816, 16, 32000), Sizes(2, 8, 2, 32, 64, 4, 61),
                 llama, tokens, next_token, PACKAGE, named_attention=True),
    )
}  # fmt: skip
"""By name."""
