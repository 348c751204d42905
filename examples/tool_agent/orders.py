"""Tools of the agent `shop`: the server runs them, no client has to know about them.

The model reads each docstring and the annotations. Arguments always fit the schema that is made
of them. A `ToolError` is reported to the model as its message.
"""

from typing import Annotated

from pydantic import Field

from agent.tools import ToolError, tool

ORDERS = {1001: "shipped on Monday", 1002: "waiting for the publisher"}


@tool
def order_status(
    number: Annotated[int, Field(description="Number of the order", ge=1000, le=9999)],
) -> str:
    """Look up the state of an order."""
    if number not in ORDERS:
        raise ToolError(f"there is no order {number}")
    return f"Order {number} is {ORDERS[number]}."


@tool
async def opening_hours() -> str:
    """Tell when the shop is open."""
    return "Monday to Saturday, nine to six."
