"""How products of sharded operands are sharded: DTensor's rules for ``sgemm`` and every stage.

As torch's own for ``mm`` and ``addmm``. On each dimension of the mesh the operands are

- replicated, and the result is;
- sharded along M, N or the batch, and the result, and what of c has that dimension, likewise;
- both sharded along K, and the result is a partial sum, to be added up where it is needed; c is
  then added by one rank. Not with an activation, which is no linear function, and not with
  ``precision="ieee"``, whose chain of K is not cut, nor of ``sgemm_invariant``.

So ``ColwiseParallel``, ``RowwiseParallel`` and ``SequenceParallel`` take layers of ours, and
gradients, which are products with other flags, follow. Importing DTensor takes a second, so
`register` is called when a product first meets a tensor of another class.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

from . import invariant

HOME = "torch.distributed.tensor"


def register() -> None:
    """Register the rules, once DTensor has been imported."""
    if HOME in sys.modules:
        _register()


@functools.cache
def _register() -> None:
    from torch.distributed.tensor import DTensor
    from torch.distributed.tensor._op_schema import RuntimeSchemaInfo
    from torch.distributed.tensor.experimental import register_sharding

    from .ops import OPS

    operators = [op for name, op in OPS.items() if name != invariant.NAME]
    # DTensor keeps what it chose by operands and by those flags that it is told of; by itself it
    # takes integers alone for such, and would shard K with an activation as it did without.
    known = DTensor._op_dispatcher.sharding_propagator.op_to_schema_info
    register_sharding(operators)(_shardings)
    whole = OPS[invariant.NAME]
    register_sharding(whole)(_shardings_of_whole_k)
    known[whole] = RuntimeSchemaInfo(static_kwargkey=["trans_a", "trans_b"], needs_pytree=True)
    for op in operators:
        flags = [arg.name for arg in op._schema.arguments if arg.kwarg_only]
        flags.remove("packed")
        known[op] = RuntimeSchemaInfo(static_kwargkey=flags, needs_pytree=True)


def _shardings_of_whole_k(
    a: Any, b: Any, c: Any = None, *, packed: Any = None, trans_a: bool = False,
    trans_b: bool = False, **_: Any,
) -> list[tuple[list[Any], list[Any]]]:  # fmt: skip
    """As of ``precision="ieee"``."""
    flags = {"trans_a": trans_a, "trans_b": trans_b, "packed": packed}
    return _shardings(a, b, c, precision="ieee", **flags)


def _shardings(
    a: Any, b: Any, c: Any = None, *, trans_a: bool = False, trans_b: bool = False,
    precision: str = "fp32", activation: str = "none", packed: Any = None, **_: Any,
) -> list[tuple[list[Any], list[Any]]]:  # fmt: skip
    """What a dimension of the mesh may do: placements of the result, and those of the operands."""
    from torch.distributed.tensor import Partial, Replicate, Shard

    rank = max(a.ndim, b.ndim)

    def choice(result: Any, of_a: Any, of_b: Any, of_c: Any) -> tuple[list[Any], list[Any]]:
        tensors = [(a, of_a), (b, of_b), (c, of_c), (packed, Replicate())]
        return [result], [placement for spec, placement in tensors if spec is not None]

    def addend(dim: int) -> Any:
        """C's placement where the result is sharded at ``dim``, counted from the end."""
        if c is None or c.ndim < -dim or c.shape[dim] == 1:
            return Replicate()
        return Shard(c.ndim + dim)

    whole = Replicate()
    m, k_of_a = (-1, -2) if trans_a else (-2, -1)
    k_of_b, n = (-1, -2) if trans_b else (-2, -1)
    choices = [
        choice(whole, whole, whole, whole),
        choice(Shard(rank - 2), Shard(a.ndim + m), whole, addend(-2)),
        choice(Shard(rank - 1), whole, Shard(b.ndim + n), addend(-1)),
    ]
    if activation == "none" and precision == "fp32":
        along_k = Shard(a.ndim + k_of_a), Shard(b.ndim + k_of_b)
        choices.append(choice(Partial(), *along_k, Partial()))
    if rank == 3:
        of_a, of_b = (Shard(0) if t.ndim == 3 and t.shape[0] != 1 else whole for t in (a, b))
        choices.append(choice(Shard(0), of_a, of_b, addend(-3)))
    return choices
