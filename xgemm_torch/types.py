"""The names that functions take as arguments, as types; each has its one place here.

A type checker refuses another name before anything runs. ``kernel=`` is a ``str``: which stages
there are is known to the compiled module alone, where a stage registers itself, and a build may
leave some out or have one of its user's; a list here would be a second place for each stage, and
would refuse ``stage.name`` of `xgemm_torch.stages()`, or a name from a command line.
"""

from __future__ import annotations

from typing import Literal

Precision = Literal["fp32", "ieee"]
"""What a product's accuracy and bits are to be, as of `xgemm_torch.sgemm`."""
Invariant = Literal["batch", "tp"]
"""What a product's bits are not to depend on: the other rows, or the degree of tensor parallelism,
too."""
Activation = Literal["none", "relu", "gelu", "gelu_tanh", "silu"]
"""What is applied to a product's result."""
Autocast = Literal["torch", "float32"]
"""What a layer does under autocast: what torch's does, or compute and give float32."""
Layout = Literal["NN", "NT", "TN", "TT"]
"""How A and B lie in memory: N by rows, T transposed."""
Order = Literal["forward", "reverse", "random"]
"""In which order the emulator runs threads and blocks."""
