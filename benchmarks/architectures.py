"""Architectures of torch and of libraries, small, with random weights: what reach.py runs.

Each is made by its library's own class from a configuration; nothing is downloaded. A function here
gives a model and what it is called with; it imports its library, so that one that is not installed
is found out when it is called. Sizes are such that a CPU runs forward and backward in seconds; a
large model of the same kind has more of its FLOP in layers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

Made = tuple[nn.Module, Any]
"""A model, and its arguments: a tuple, or a dict of those by name."""

WIDTH, HEADS, LENGTH, WORDS = 64, 4, 32, 96


@dataclass(frozen=True)
class Architecture:
    """A model by its name, the package that has it, and what makes it.

    ``types`` is the place of a class that ``convert(types=)`` is to be told of.
    """

    name: str
    package: str
    make: Callable[[], Made]
    types: str = ""


ARCHITECTURES: list[Architecture] = []


def of(
    package: str, name: str, types: str = ""
) -> Callable[[Callable[[], Made]], Callable[[], Made]]:
    """Put what makes a model into `ARCHITECTURES`."""

    def add(make: Callable[[], Made]) -> Callable[[], Made]:
        ARCHITECTURES.append(Architecture(name, package, make, types))
        return make

    return add


def ids(batch: int = 2) -> Tensor:
    return torch.randint(1, WORDS, (batch, LENGTH))


def image(size: int = 64, channels: int = 3) -> Tensor:
    return torch.randn(2, channels, size, size)


def positions(width: int = WIDTH) -> Tensor:
    return torch.randn(2, LENGTH, width)


# ------------------------------------------------------------------------------ torch


@of("torch", "nn.Sequential MLP")
def mlp() -> Made:
    layers = [nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 256), nn.GELU(), nn.Linear(256, 8)]
    return nn.Sequential(*layers), (torch.randn(64, 64),)


@of("torch", "nn.Transformer")
def transformer() -> Made:
    model = nn.Transformer(WIDTH, HEADS, 2, 2, 4 * WIDTH, 0.0, batch_first=True)
    return model, (positions(), positions())


@of("torch", "nn.TransformerEncoder")
def encoder() -> Made:
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, 0.0, batch_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), (positions(),)


@of("torch", "nn.MultiheadAttention")
def attention() -> Made:
    return nn.MultiheadAttention(WIDTH, HEADS, batch_first=True), (positions(),) * 3


@of("torch", "nn.GRU")
def gru() -> Made:
    return nn.GRU(WIDTH, WIDTH, 2, batch_first=True), (positions(),)


@of("torch", "nn.LSTM")
def lstm() -> Made:
    return nn.LSTM(WIDTH, WIDTH, 2, batch_first=True), (positions(),)


class Cells(nn.Module):
    """LSTM cells, step by step."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.LSTMCell(WIDTH, WIDTH), nn.Linear(WIDTH, 8)

    def forward(self, x: Tensor) -> Tensor:
        state = None
        for step in x.unbind(1):
            state = self.cell(step, state)
        return self.head(state[0])


@of("torch", "nn.LSTMCell")
def cells() -> Made:
    return Cells(), (positions(),)


# ------------------------------------------------------------------------------ transformers

TEXT = {
    "vocab_size": WORDS, "hidden_size": WIDTH, "intermediate_size": 4 * WIDTH,
    "num_hidden_layers": 2, "num_attention_heads": HEADS, "pad_token_id": 0, "bos_token_id": 1,
    "eos_token_id": 2,
}  # fmt: skip
CAUSAL = {**TEXT, "num_key_value_heads": 2, "max_position_embeddings": 64, "use_cache": False}
DRY = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def of_transformers(config: str, model: str, inputs: Any = None, **sizes: Any) -> Made:
    import transformers

    made = getattr(transformers, model)(getattr(transformers, config)(**sizes))
    return made, {"input_ids": ids()} if inputs is None else inputs


def transformers_text(name: str, config: str, model: str, types: str = "", **sizes: Any) -> None:
    of("transformers", name, types)(lambda: of_transformers(config, model, **sizes))


transformers_text("Llama", "LlamaConfig", "LlamaForCausalLM", **CAUSAL)
transformers_text("Gemma 2", "Gemma2Config", "Gemma2ForCausalLM", **CAUSAL, head_dim=16)
transformers_text(
    "GPT-2", "GPT2Config", "GPT2LMHeadModel", vocab_size=WORDS, n_embd=WIDTH, n_layer=2,
    n_head=HEADS, n_positions=64, use_cache=False, bos_token_id=1, eos_token_id=2,
)  # fmt: skip
transformers_text("BERT", "BertConfig", "BertModel", **TEXT, **DRY)
transformers_text("DeBERTa v2", "DebertaV2Config", "DebertaV2Model", **TEXT, **DRY,
                  relative_attention=True, position_buckets=16, pos_att_type=["p2c", "c2p"],
                  max_relative_positions=64)  # fmt: skip
transformers_text(
    "Falcon", "FalconConfig", "FalconForCausalLM",
    "transformers.models.falcon.modeling_falcon.FalconLinear", **TEXT, use_cache=False,
)  # fmt: skip
transformers_text("Mixtral", "MixtralConfig", "MixtralForCausalLM", **CAUSAL, num_local_experts=4)
transformers_text(
    "Qwen2-MoE", "Qwen2MoeConfig", "Qwen2MoeForCausalLM", **CAUSAL, num_experts=4,
    moe_intermediate_size=128, shared_expert_intermediate_size=128, decoder_sparse_step=1,
)  # fmt: skip
transformers_text("gpt-oss", "GptOssConfig", "GptOssForCausalLM", **CAUSAL, head_dim=16,
                  layer_types=["sliding_attention", "full_attention"], num_local_experts=4,
                  )  # fmt: skip
transformers_text("Mamba", "MambaConfig", "MambaForCausalLM", vocab_size=WORDS, hidden_size=WIDTH,
                  num_hidden_layers=2, state_size=8, use_cache=False, pad_token_id=0,
                  bos_token_id=1, eos_token_id=2)  # fmt: skip
transformers_text("Mamba 2", "Mamba2Config", "Mamba2ForCausalLM", vocab_size=WORDS,
                  hidden_size=WIDTH, num_hidden_layers=2, state_size=8, num_heads=8, head_dim=16,
                  n_groups=1, chunk_size=16, use_cache=False, pad_token_id=0, bos_token_id=1,
                  eos_token_id=2)  # fmt: skip
transformers_text("XLNet", "XLNetConfig", "XLNetModel", vocab_size=WORDS, d_model=WIDTH, n_layer=2,
                  n_head=HEADS, d_inner=4 * WIDTH, dropout=0.0)  # fmt: skip


@of("transformers", "T5")
def t5() -> Made:
    inputs = {"input_ids": ids(), "decoder_input_ids": ids()}
    return of_transformers(
        "T5Config", "T5ForConditionalGeneration", inputs, vocab_size=WORDS, d_model=WIDTH, d_kv=16,
        d_ff=4 * WIDTH, num_layers=2, num_heads=HEADS, dropout_rate=0.0, use_cache=False,
        decoder_start_token_id=0,
    )  # fmt: skip


@of("transformers", "Whisper")
def whisper() -> Made:
    inputs = {"input_features": torch.randn(2, 16, 64), "decoder_input_ids": ids()}
    return of_transformers(
        "WhisperConfig", "WhisperModel", inputs, vocab_size=WORDS, num_mel_bins=16, d_model=WIDTH,
        encoder_layers=2, decoder_layers=2, encoder_attention_heads=HEADS,
        decoder_attention_heads=HEADS, encoder_ffn_dim=4 * WIDTH, decoder_ffn_dim=4 * WIDTH,
        max_source_positions=32, max_target_positions=64, use_cache=False, pad_token_id=0,
        bos_token_id=1, eos_token_id=2, decoder_start_token_id=1, dropout=0.0,
    )  # fmt: skip


@of("transformers", "CLIP's vision tower")
def clip() -> Made:
    sizes = {"hidden_size": WIDTH, "intermediate_size": 4 * WIDTH, "num_hidden_layers": 2}
    return of_transformers(
        "CLIPVisionConfig", "CLIPVisionModel", {"pixel_values": image()}, **sizes,
        num_attention_heads=HEADS, image_size=64, patch_size=16,
    )  # fmt: skip


@of("transformers", "SegFormer")
def segformer() -> Made:
    return of_transformers(
        "SegformerConfig", "SegformerForSemanticSegmentation", {"pixel_values": image()},
        hidden_sizes=[16, 32, 64, 64], depths=[1, 1, 1, 1], decoder_hidden_size=64, **DRY,
        drop_path_rate=0.0, classifier_dropout_prob=0.0,
    )  # fmt: skip


# ------------------------------------------------------------------------------ torchvision, timm


def of_torchvision(name: str, size: int = 64, **options: Any) -> Made:
    import torchvision

    return getattr(torchvision.models, name)(weights=None, **options), (image(size),)


def vit_of_torchvision() -> Made:
    import torchvision

    sizes = {"num_layers": 2, "num_heads": HEADS, "hidden_dim": WIDTH, "mlp_dim": 4 * WIDTH}
    return torchvision.models.VisionTransformer(64, 8, **sizes), (image(),)


def of_timm(name: str, size: int = 64, **options: Any) -> Made:
    import timm

    return timm.create_model(name, pretrained=False, num_classes=8, **options), (image(size),)


def of_timm_class(name: str, **sizes: Any) -> Made:
    import timm.models

    return getattr(timm.models, name)(img_size=64, num_classes=8, **sizes), (image(),)


TINY = {"embed_dim": WIDTH, "depth": 2, "num_heads": HEADS, "img_size": 64}
of("torchvision", "ResNet-50")(lambda: of_torchvision("resnet50"))
of("torchvision", "EfficientNet-B0")(lambda: of_torchvision("efficientnet_b0"))
of("torchvision", "ConvNeXt-T")(lambda: of_torchvision("convnext_tiny"))
of("torchvision", "Swin-T")(lambda: of_torchvision("swin_t"))
of("torchvision", "Vision Transformer")(vit_of_torchvision)
of("timm", "ViT")(lambda: of_timm("vit_tiny_patch16_224", **TINY))
of("timm", "EVA-02")(lambda: of_timm("eva02_tiny_patch14_336", img_size=56, size=56, depth=2))
of("timm", "Swin v2")(
    lambda: of_timm_class(
        "SwinTransformerV2", embed_dim=32, depths=(1, 1), num_heads=(2, 4), window_size=4
    )
)
of("timm", "MLP-Mixer")(lambda: of_timm_class("MlpMixer", embed_dim=WIDTH, num_blocks=2))
of("timm", "MobileNetV4")(lambda: of_timm("mobilenetv4_conv_small"))


@of("vit-pytorch", "SimpleViT")
def simple_vit() -> Made:
    from vit_pytorch import SimpleViT

    sizes = {"dim": WIDTH, "depth": 2, "heads": HEADS, "mlp_dim": 4 * WIDTH, "dim_head": 16}
    return SimpleViT(image_size=64, patch_size=8, num_classes=8, **sizes), (image(),)


@of("x-transformers", "Decoder with rotary positions")
def x_transformer() -> Made:
    from x_transformers import Decoder, TransformerWrapper

    layers = Decoder(dim=WIDTH, depth=2, heads=HEADS, rotary_pos_emb=True, ff_glu=True)
    return TransformerWrapper(num_tokens=WORDS, max_seq_len=64, attn_layers=layers), (ids(),)


# ------------------------------------------------------------------------------ diffusers, peft


@of("diffusers", "UNet of Stable Diffusion")
def unet() -> Made:
    from diffusers import UNet2DConditionModel

    model = UNet2DConditionModel(
        sample_size=16, block_out_channels=(32, 64), layers_per_block=1, cross_attention_dim=32,
        attention_head_dim=8, norm_num_groups=8,
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
    )  # fmt: skip
    return model, (image(16, 4), torch.tensor([1, 7]), torch.randn(2, 8, 32))


@of("diffusers", "DiT")
def dit() -> Made:
    from diffusers import DiTTransformer2DModel

    model = DiTTransformer2DModel(
        num_attention_heads=HEADS, attention_head_dim=16, in_channels=4, num_layers=2,
        sample_size=16, patch_size=2, num_embeds_ada_norm=10,
    )  # fmt: skip
    steps, labels = torch.tensor([1, 7]), torch.tensor([3, 4])
    return model, {"hidden_states": image(16, 4), "timestep": steps, "class_labels": labels}


@of("diffusers", "autoencoder of Stable Diffusion")
def autoencoder() -> Made:
    from diffusers import AutoencoderKL

    model = AutoencoderKL(
        block_out_channels=(16, 32), layers_per_block=1, norm_num_groups=8,
        down_block_types=("DownEncoderBlock2D",) * 2, up_block_types=("UpDecoderBlock2D",) * 2,
    )  # fmt: skip
    return model, (image(32),)


@of("diffusers", "Flux")
def flux() -> Made:
    from diffusers import FluxTransformer2DModel

    model = FluxTransformer2DModel(
        in_channels=16, num_layers=1, num_single_layers=1, attention_head_dim=16,
        num_attention_heads=HEADS, joint_attention_dim=32, pooled_projection_dim=32,
        axes_dims_rope=(4, 6, 6),
    )  # fmt: skip
    return model, {
        "hidden_states": torch.randn(2, 64, 16), "encoder_hidden_states": torch.randn(2, 8, 32),
        "pooled_projections": torch.randn(2, 32), "timestep": torch.tensor([0.1, 0.7]),
        "img_ids": torch.zeros(64, 3), "txt_ids": torch.zeros(8, 3),
    }  # fmt: skip


@of("peft", "Llama with LoRA")
def lora() -> Made:
    import peft

    model, inputs = of_transformers("LlamaConfig", "LlamaForCausalLM", **CAUSAL)
    config = peft.LoraConfig(r=8, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    return peft.get_peft_model(model, config), inputs


# ------------------------------------------------------------------------------ graphs and physics

NODES, EDGES = 200, 1200


class OnGraph(nn.Module):
    """Two graph layers, called with the graph's edges."""

    def __init__(self, first: nn.Module, second: nn.Module, types: bool = False) -> None:
        super().__init__()
        self.first, self.second = first, second
        more = (torch.randint(0, 3, (EDGES,)),) if types else ()
        for i, t in enumerate((torch.randint(0, NODES, (2, EDGES)), *more)):
            self.register_buffer(f"graph{i}", t)

    def forward(self, x: Tensor) -> Tensor:
        graph = tuple(self.buffers(recurse=False))
        return self.second(torch.relu(self.first(x, *graph)), *graph)


def of_pyg(name: str, *more: Any, types: bool = False, **options: Any) -> Made:
    import torch_geometric.nn

    kind = getattr(torch_geometric.nn, name)
    layers = kind(WIDTH, WIDTH, *more, **options), kind(WIDTH, WIDTH, *more, **options)
    return OnGraph(*layers, types=types), (torch.randn(NODES, WIDTH),)


PYG = "torch_geometric.nn.Linear"
of("torch-geometric", "GCNConv", PYG)(lambda: of_pyg("GCNConv"))
of("torch-geometric", "GraphSAGE", PYG)(lambda: of_pyg("SAGEConv"))
of("torch-geometric", "GATv2", PYG)(lambda: of_pyg("GATv2Conv", heads=HEADS, concat=False))
of("torch-geometric", "RGCN")(lambda: of_pyg("RGCNConv", 3, types=True))
of("torch-geometric", "TransformerConv", PYG)(
    lambda: of_pyg("TransformerConv", heads=HEADS, concat=False)
)


@of("e3nn", "tensor product and o3.Linear")
def e3nn() -> Made:
    from e3nn import o3

    irreps = o3.Irreps("16x0e + 16x1o + 8x2e")

    class Equivariant(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = o3.Linear(irreps, irreps)
            self.product = o3.FullyConnectedTensorProduct(irreps, "1x0e + 1x1o", irreps)

        def forward(self, x: Tensor, edges: Tensor) -> Tensor:
            return self.linear(self.product(self.linear(x), edges))

    return Equivariant(), (torch.randn(64, irreps.dim), torch.randn(64, 4))


@of("gpytorch", "exact Gaussian process")
def gpytorch() -> Made:
    import gpytorch

    class Process(gpytorch.models.ExactGP):
        def __init__(self, x: Tensor, y: Tensor) -> None:
            super().__init__(x, y, gpytorch.likelihoods.GaussianLikelihood())
            self.mean_module = gpytorch.means.ConstantMean()
            self.covar_module = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel())

        def forward(self, x: Tensor) -> Any:
            return gpytorch.distributions.MultivariateNormal(
                self.mean_module(x), self.covar_module(x)
            )

    class Loss(nn.Module):
        """Minus the log of the marginal likelihood, as it is trained."""

        def __init__(self, x: Tensor, y: Tensor) -> None:
            super().__init__()
            self.process = Process(x, y)

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            self.process.train().set_train_data(x, y, strict=False)
            likelihood = self.process.likelihood
            return -gpytorch.ExactMarginalLogLikelihood(likelihood, self.process)(
                self.process(x), y
            )

    x = torch.randn(200, 6)
    y = x.sin().sum(1)
    return Loss(x, y), (x, y)


def of_neuralop(name: str, **options: Any) -> Made:
    import neuralop.models

    model = getattr(neuralop.models, name)(
        in_channels=3, out_channels=1, hidden_channels=32, n_layers=2, **options
    )
    return model, (image(32),)


of("neuraloperator", "FNO")(lambda: of_neuralop("FNO", n_modes=(8, 8)))
of("neuraloperator", "TFNO")(lambda: of_neuralop("TFNO", n_modes=(8, 8), rank=0.5))
