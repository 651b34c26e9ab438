"""How this process was started, for messages that say which command comes next."""

from __future__ import annotations

import sys
from pathlib import Path


def called(*words: object) -> str:
    """The command line's name as it was typed, ``xgemm`` or ``python -m xgemm_torch``, and words.

    ``called("train", "--resume")`` is ``"python -m xgemm_torch train --resume"``.
    """
    name = "xgemm" if Path(sys.argv[0]).stem == "xgemm" else "python -m xgemm_torch"
    return " ".join([name, *map(str, words)])
