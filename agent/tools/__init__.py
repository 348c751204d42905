"""Function tools: `tool` and `ToolError` are what a file of Python tools imports from here."""

from .api import ToolError, tool

__all__ = ["ToolError", "tool"]
