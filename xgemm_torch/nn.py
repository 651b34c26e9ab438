"""``torch.nn.Linear`` on ``sgemm``."""

from __future__ import annotations

from typing import Any, TypedDict

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.compiler import is_compiling

from . import _checks
from .deploy import Deployed
from .functional import linear
from .linears import obstacle, replaced
from .ops import ACTIVATIONS, KERNELS
from .packed import PackedWeight, prepack
from .stock import check_autocast, is_torchs
from .types import Activation, Autocast, Invariant, Precision

__all__ = ["Linear"]


class Options(TypedDict):
    """How a layer multiplies."""

    kernel: str
    precision: Precision
    activation: Activation
    autocast: Autocast
    invariant: Invariant | None


DEFAULTS: Options = {
    "kernel": "auto", "precision": "fp32", "activation": "none", "autocast": "torch",
    "invariant": None,
}  # fmt: skip


class Linear(Deployed, torch.nn.Linear):
    """``torch.nn.Linear`` whose product, forward and backward, is ``xgemm_torch.linear``.

    The same parameters, initial values and ``state_dict`` keys as torch's; the rest of torch takes
    it for what it is, an ``nn.Linear``. Where the weight is not float32, as after
    ``module.bfloat16()``, and under autocast, the product is torch's own, its result's dtype and
    its errors, too.

    Args:
        in_features: size of each input sample.
        out_features: size of each output sample.
        bias: whether there is a bias of (out_features,).
        device: of the parameters.
        dtype: of the parameters; the product is ours where it is float32.
        kernel: "auto" or a stage's name.
        precision: "fp32" or "ieee".
        activation: what to apply to the result: "none", "relu", "gelu", "gelu_tanh" or "silu".
        autocast: what to do under autocast: "torch", compute in its dtype as torch's own module, or
            "float32", compute in float32 and give float32.
        invariant: "batch", or with ``precision="ieee"`` "tp", as of ``xgemm_torch.sgemm``.

    Shapes:
        (..., in_features) -> (..., out_features)

    Raises:
        ValueError: an unknown kernel, precision, activation or way under autocast, or
            ``invariant="tp"`` without ``precision="ieee"``.
    """

    # Defaults of the class, so that a torch.nn.Linear made one of these by its __class__ works.
    kernel: str = DEFAULTS["kernel"]
    precision: Precision = DEFAULTS["precision"]
    activation: Activation = DEFAULTS["activation"]
    autocast: Autocast = DEFAULTS["autocast"]
    invariant: Invariant | None = DEFAULTS["invariant"]
    packed: PackedWeight | None = None

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: Any = None,
        dtype: torch.dtype | None = None,
        *,
        kernel: str = "auto",
        precision: Precision = "fp32",
        activation: Activation = "none",
        autocast: Autocast = "torch",
        invariant: Invariant | None = None,
    ) -> None:
        """As the class says."""
        _checks.check_options("Linear", KERNELS["sgemm"], kernel, precision, activation)
        check_autocast("Linear", autocast)
        _checks.check_invariant("Linear", invariant, precision)
        super().__init__(in_features, out_features, bias, device, dtype)
        self.kernel = kernel
        self.precision = precision
        self.activation = activation
        self.autocast = autocast
        self.invariant = invariant

    def forward(self, input: Tensor) -> Tensor:
        """activation(input weight^T + bias): (..., in_features) -> (..., out_features)."""
        weight: Any = self.weight
        if is_torchs(weight, self.autocast):
            out = F.linear(input, weight, self.bias)
            return out if self.activation == "none" else ACTIVATIONS[self.activation](out)
        if self.packed is not None and not is_compiling():
            if self.training:
                self.packed.renew()
            else:
                weight = self._packed_weight(self.packed, weight)
        return linear(
            input,
            weight,
            self.bias,
            self.activation,
            precision=self.precision,
            kernel=self.kernel,
            invariant=self.invariant,
        )

    def prepack(self) -> Linear:
        """Keep what products make of the weight, for inference; returns the module itself.

        It counts in eval mode; in training mode the weight itself is used, and it is packed anew in
        the first forward after that. ``xgemm_torch.prepack`` says what it gains, and which changes
        of the weight go unseen: after a collective or another library's kernel has written to it in
        eval mode, call ``prepack()`` again. A forward after any other change in eval mode raises
        RuntimeError, until ``prepack()`` or ``unprepack()``. A tensor that stands in for the
        parameter and is none itself, as in ``torch.func.functional_call``, is used as it is;
        another Parameter is refused there, too, for nothing tells that it is there for one call. A
        copy of the module packs its own weight when it is first used.

        Raises:
            TypeError: the weight is no dense float32 tensor, or is computed (parametrized).
            ValueError: the module's kernel is a stage that does not pack.
            RuntimeError: no memory, or a stage that the device cannot run.
        """
        if "weight" not in self._parameters:
            raise TypeError("Linear: prepack needs a weight that is a parameter of the module")
        self.packed = prepack(self.weight, kernel=self.kernel)
        return self

    def train(self, mode: bool = True) -> Linear:
        """torch's; in training mode the weight changes, so ``prepack`` begins anew after it."""
        if mode and self.packed is not None:
            self.packed.renew()
        return super().train(mode)

    def unprepack(self) -> Linear:
        """Undo ``prepack()`` and free its memory; returns the module itself."""
        vars(self).pop("packed", None)
        return self

    def _packed_weight(self, packed: PackedWeight, weight: Tensor) -> PackedWeight | Tensor:
        if packed.weight is not weight:
            if not isinstance(weight, torch.nn.Parameter):  # it is the module's for this call only
                return weight
            raise RuntimeError(
                "Linear: the packed weight is stale: the module has another weight since "
                "prepack(); call prepack() again, or unprepack() (also before a functional_call "
                "with Parameters, or give it their .data)"
            )
        return packed

    def extra_repr(self) -> str:
        """torch's, and what differs from the defaults."""
        extra = [
            f"{key}={value}"
            for key, default in DEFAULTS.items()
            if (value := getattr(self, key)) != default
        ]
        if self.packed is not None:
            extra.append("prepacked")
        return ", ".join([super().extra_repr(), *extra])

    @classmethod
    def from_linear(
        cls,
        module: torch.nn.Linear,
        *,
        kernel: str | None = None,
        precision: Precision | None = None,
        activation: Activation | None = None,
        autocast: Autocast | None = None,
        invariant: Invariant | None = None,
    ) -> Linear:
        """A new module that shares the parameters of ``module``, and its training mode.

        Hooks stay with ``module``; ``xgemm_torch.convert`` keeps them. What is not given of the
        options is that of ``module`` where it is an ``xgemm_torch.nn.Linear``, else the default.

        Raises:
            TypeError: ``module`` is neither exactly a ``torch.nn.Linear`` nor one of these, or a
                parameter of it is computed (parametrized, pruned).
            ValueError: an unknown kernel, precision or activation.
        """
        if not isinstance(module, torch.nn.Linear):
            raise TypeError(f"from_linear: needs a torch.nn.Linear, got {type(module).__name__}")
        ours = type(module) in (Linear, cls)
        if reason := replaced(module) if ours else obstacle(module):
            raise TypeError(f"from_linear: needs a torch.nn.Linear as it is; this one: {reason}")
        _must_have_parameters("from_linear", module)
        given = {"kernel": kernel, "precision": precision, "activation": activation}
        given |= {"autocast": autocast, "invariant": invariant}
        options: dict[str, Any] = {
            key: getattr(module, key) if ours else default for key, default in DEFAULTS.items()
        }
        options |= {key: value for key, value in given.items() if value is not None}
        bias = module.bias is not None
        new = cls(module.in_features, module.out_features, bias, device="meta", **options)
        new.weight, new.bias = module.weight, module.bias
        return new.train(module.training)

    def to_linear(self) -> torch.nn.Linear:
        """A new ``torch.nn.Linear`` that shares this one's parameters and training mode.

        Raises:
            TypeError: a parameter is computed (parametrized).
            ValueError: this module has an activation, which torch's has not.
        """
        _must_have_parameters("to_linear", self)
        if self.activation != "none":
            raise ValueError(f"to_linear: torch.nn.Linear has no activation '{self.activation}'")
        new = torch.nn.Linear(
            self.in_features, self.out_features, self.bias is not None, device="meta"
        )
        new.weight, new.bias = self.weight, self.bias
        return new.train(self.training)


def _must_have_parameters(name: str, module: torch.nn.Linear) -> None:
    if not {"weight", "bias"} <= module._parameters.keys():
        raise TypeError(f"{name}: weight and bias must be parameters of the module")
