"""The kernel once more, for those who look for a package of its name in a variant."""

import importlib.util
import json
import sys
from pathlib import Path

_HOME = Path(__file__).resolve().parent.parent
_ID = json.loads((_HOME / "metadata.json").read_text())["id"]
if _ID not in sys.modules:
    _SPEC = importlib.util.spec_from_file_location(_ID, _HOME / "__init__.py")
    assert _SPEC is not None and _SPEC.loader is not None
    sys.modules[_ID] = importlib.util.module_from_spec(_SPEC)
    _SPEC.loader.exec_module(sys.modules[_ID])
__all__ = sys.modules[_ID].__all__
globals().update({name: getattr(sys.modules[_ID], name) for name in __all__})
