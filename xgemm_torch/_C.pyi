"""The compiled module: its functions take and give JSON, numbers and text."""

from typing import Any

def __getattr__(name: str) -> Any: ...
