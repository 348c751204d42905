"""Tools in Python, for the real service of the tests."""

from typing import Annotated, Literal

from pydantic import Field

from agent.tools.api import tool


@tool
def forecast(
    city: Annotated[str, Field(description="Name of a city", max_length=20)],
    day: Literal["today", "tomorrow"] = "today",
) -> str:
    """Tell the weather in a city."""
    return f"It is sunny {day} in {city}."
