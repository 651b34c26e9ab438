"""What one training job is: every setting that its numbers depend on, and nothing else."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from .model import SHAPES, Shape


@dataclass(frozen=True)
class Defaults:
    """What a size trains with when nothing else is asked for."""

    steps: int
    batch: int
    seq: int
    learning_rate: float
    checkpoint_every: int


DEFAULTS = {
    "tiny": Defaults(steps=20, batch=2, seq=16, learning_rate=3e-3, checkpoint_every=5),
    "nano": Defaults(steps=600, batch=16, seq=64, learning_rate=3e-3, checkpoint_every=50),
    "small": Defaults(steps=600, batch=16, seq=256, learning_rate=1e-3, checkpoint_every=50),
    "gpt2": Defaults(steps=100, batch=8, seq=1024, learning_rate=6e-4, checkpoint_every=100),
}
RUNS = ("stock", "converted")


@dataclass(frozen=True)
class Config:
    """One job. ``steps`` counts optimizer steps of each of the two runs, ``seq`` bytes a row."""

    size: str
    device: str
    steps: int
    batch: int
    seq: int
    learning_rate: float
    seed: int = 1
    kernel: str = "auto"
    precision: str = "fp32"
    check_kernel: str = "vec4_128x128"
    dropout: float = 0.0
    weight_decay: float = 0.1
    clip: float = 1.0

    def __post_init__(self) -> None:
        """Refuse settings that cannot be trained with."""
        if self.size not in SHAPES:
            raise ValueError(f"train: no size {self.size!r}; there are: {', '.join(SHAPES)}")
        if self.device not in ("cpu", "cuda"):
            raise ValueError(f"train: device must be cpu or cuda, got {self.device!r}")
        for name in ("steps", "batch", "seq"):
            if getattr(self, name) < 1:
                raise ValueError(f"train: {name} must be at least 1, got {getattr(self, name)}")
        if self.seq > self.shape.context:
            raise ValueError(
                f"train: seq is {self.seq}, but {self.size} has a context of {self.shape.context}"
            )
        if not 0.0 <= self.dropout < 1.0:
            raise ValueError(f"train: dropout must be in [0, 1), got {self.dropout}")
        if not 0.0 < self.learning_rate < math.inf:
            raise ValueError(f"train: lr must be above 0 and finite, got {self.learning_rate}")
        if not 0 <= self.seed < 2**63:
            raise ValueError(f"train: seed must be from 0 to 2^63 - 1, got {self.seed}")

    @property
    def shape(self) -> Shape:
        """The model's sizes."""
        return SHAPES[self.size]

    @property
    def tokens_per_step(self) -> int:
        """Bytes of text that one optimizer step reads."""
        return self.batch * self.seq

    def to_json(self) -> str:
        """Give the settings as JSON text."""
        return json.dumps(asdict(self), indent=2) + "\n"

    @classmethod
    def load(cls, path: Path) -> Config:
        """Read a file of ``to_json``; ValueError when it is something else."""
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
            return cls(**values)
        except (UnicodeDecodeError, json.JSONDecodeError, TypeError) as error:
            raise ValueError(f"train: {path} is not a job's settings: {error}") from None

    def difference(self, wanted: dict[str, object]) -> list[str]:
        """Name the settings in ``wanted`` that this job does not have."""
        mine = {field.name: getattr(self, field.name) for field in fields(self)}
        return [
            f"{name} {value} (the run has {mine[name]})"
            for name, value in wanted.items()
            if mine[name] != value
        ]


def make(size: str, device: str, **chosen: object) -> Config:
    """Build a Config: the size's defaults, replaced by those of ``chosen`` that are not None."""
    if size not in DEFAULTS:
        raise ValueError(f"train: no size {size!r}; there are: {', '.join(DEFAULTS)}")
    values: dict[str, object] = {
        name: getattr(DEFAULTS[size], name) for name in ("steps", "batch", "seq", "learning_rate")
    }
    values.update({name: value for name, value in chosen.items() if value is not None})
    return Config(size=size, device=device, **values)  # type: ignore[arg-type]
