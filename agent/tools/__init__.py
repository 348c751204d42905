"""Function tools. A file of Python tools imports `tool` and `ToolError` from here."""

from .api import ToolError, tool

__all__ = ["ToolError", "tool"]
