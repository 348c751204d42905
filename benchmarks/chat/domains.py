"""Domains of the dialogues with tools: a state, and the tools that read and change it.

A dialogue is judged by the state that its calls leave, in the manner of tau-bench (arXiv
2406.12045): what the agent says it did does not count. Every dialogue begins with a fresh state.
"""

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

State: TypeAlias = dict[str, Any]
Arguments: TypeAlias = Mapping[str, Any]


class DomainError(Exception):
    """A call that the domain refuses; its text is the tool's result."""


@dataclass(frozen=True, slots=True)
class DomainTool:
    """A tool of a domain."""

    name: str
    description: str
    parameters: Mapping[str, Mapping[str, Any]]
    """JSON schema of each argument. All are required, except those of `optional`."""
    run: Callable[[State, Arguments], Any]
    """Changes the state and returns the result. Raises DomainError."""
    optional: tuple[str, ...] = ()

    def definition(self) -> dict[str, Any]:
        """Definition for `/v1/chat/completions`."""
        required = [name for name in self.parameters if name not in self.optional]
        schema = {"type": "object", "properties": self.parameters, "required": required}
        return {
            "type": "function",
            "function": {
                "name": self.name,
                "description": self.description,
                "parameters": schema,
            },
        }


@dataclass(frozen=True, slots=True)
class Domain:
    """A state and its tools."""

    about: str
    """Added to the instructions: who the agent works for, and the date."""
    state: State
    tools: tuple[DomainTool, ...]

    def fresh_state(self) -> State:
        return copy.deepcopy(self.state)

    def call(self, state: State, name: str, arguments: Arguments) -> Any:
        """Run a tool. Raises DomainError, also for an unknown tool and missing arguments."""
        for tool in self.tools:
            if tool.name == name:
                missing = [
                    each
                    for each in tool.parameters
                    if each not in tool.optional and each not in arguments
                ]
                if missing:
                    raise DomainError(f"missing: {', '.join(missing)}")
                return tool.run(state, arguments)
        raise DomainError(f"no tool {name}")


def _text(description: str) -> dict[str, Any]:
    return {"type": "string", "description": description}


def _number(description: str) -> dict[str, Any]:
    return {"type": "number", "description": description}


def _count(description: str) -> dict[str, Any]:
    return {"type": "integer", "description": description}


def _choice(*values: str) -> dict[str, Any]:
    return {"type": "string", "enum": list(values)}


_DAYS: Final = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_TIME: Final = _text("24-hour time, HH:MM")


# --- restaurant ---


def _book_table(state: State, given: Arguments) -> Any:
    booking = {
        "id": f"T{len(state['bookings']) + 1}",
        **{key: given[key] for key in ("name", "people", "day", "time")},
    }
    if booking["day"] in state["closed"]:
        raise DomainError(f"closed on {booking['day']}")
    state["bookings"].append(booking)
    return {"booked": booking}


def _find_booking(state: State, given: Arguments) -> Any:
    wanted = str(given["name"]).casefold()
    return [each for each in state["bookings"] if each["name"].casefold() == wanted]


def _cancel_table(state: State, given: Arguments) -> Any:
    wanted = str(given["name"]).casefold()
    left = [each for each in state["bookings"] if each["name"].casefold() != wanted]
    if len(left) == len(state["bookings"]):
        raise DomainError(f"no booking for {given['name']}")
    state["bookings"] = left
    return {"cancelled": given["name"]}


def _opening_hours(state: State, given: Arguments) -> Any:
    day = given["day"]
    return "closed" if day in state["closed"] else state["hours"]


RESTAURANT: Final = Domain(
    "You answer the phone of the restaurant Bella Vista. Today is Monday.",
    {
        "closed": ["Tuesday"],
        "hours": "17:00 to 23:00",
        "bookings": [
            {"id": "T1", "name": "Miller", "people": 2, "day": "Friday", "time": "19:30"},
            {"id": "T2", "name": "Okafor", "people": 6, "day": "Saturday", "time": "20:00"},
        ],
    },
    (
        DomainTool(
            "book_table",
            "Book a table.",
            {
                "name": _text("name of the guest"),
                "people": _count("number of people"),
                "day": _choice(*_DAYS),
                "time": _TIME,
            },
            _book_table,
        ),
        DomainTool(
            "find_booking",
            "Look up the booking of a guest.",
            {"name": _text("name of the guest")},
            _find_booking,
        ),
        DomainTool(
            "cancel_booking",
            "Cancel the booking of a guest.",
            {"name": _text("name of the guest")},
            _cancel_table,
        ),
        DomainTool(
            "opening_hours",
            "Get the opening hours of a day.",
            {"day": _choice(*_DAYS)},
            _opening_hours,
        ),
    ),
)


# --- bank ---


def _balance(state: State, given: Arguments) -> Any:
    return {"balance": state["accounts"][given["account"]]}


def _transfer(state: State, given: Arguments) -> Any:
    accounts, amount = state["accounts"], float(given["amount"])
    source, target = given["source"], given["target"]
    if amount <= 0 or amount > accounts[source]:
        raise DomainError(f"the {source} account holds {accounts[source]}")
    accounts[source] -= amount
    accounts[target] += amount
    return {"moved": amount, "left": accounts[source]}


def _block_card(state: State, given: Arguments) -> Any:
    card = str(given["last_digits"])
    if card not in state["cards"]:
        raise DomainError(f"no card ends in {card}")
    state["cards"][card] = "blocked"
    return {"blocked": card}


def _set_limit(state: State, given: Arguments) -> Any:
    state["daily_limit"] = given["amount"]
    return {"daily_limit": given["amount"]}


_ACCOUNT: Final = _choice("checking", "savings")
BANK: Final = Domain(
    "You answer the phone of Northside Bank. The caller is identified.",
    {
        "accounts": {"checking": 820.0, "savings": 4300.0},
        "cards": {"4471": "active", "9032": "active"},
        "daily_limit": 500,
    },
    (
        DomainTool(
            "get_balance", "Get the balance of an account.", {"account": _ACCOUNT}, _balance
        ),
        DomainTool(
            "transfer_money",
            "Move money between the caller's accounts.",
            {"amount": _number("in dollars"), "source": _ACCOUNT, "target": _ACCOUNT},
            _transfer,
        ),
        DomainTool(
            "block_card",
            "Block a lost or stolen card.",
            {"last_digits": _text("last four digits of the card")},
            _block_card,
        ),
        DomainTool(
            "set_daily_limit",
            "Change the daily limit of the caller's cards.",
            {"amount": _count("in dollars")},
            _set_limit,
        ),
    ),
)


# --- support ---


def _order(state: State, given: Arguments) -> dict[str, Any]:
    number = str(given["order_number"])
    if number not in state["orders"]:
        raise DomainError(f"no order {number}")
    order: dict[str, Any] = state["orders"][number]
    return order


def _cancel_order(state: State, given: Arguments) -> Any:
    order = _order(state, given)
    if order["status"] != "packed":
        raise DomainError(f"the order is {order['status']} and can't be cancelled")
    order["status"] = "cancelled"
    return order


def _return_order(state: State, given: Arguments) -> Any:
    order = _order(state, given)
    if order["status"] != "delivered":
        raise DomainError(f"the order is {order['status']}; only delivered ones can be returned")
    order["status"] = "return requested"
    order["reason"] = given["reason"]
    return order


def _change_address(state: State, given: Arguments) -> Any:
    order = _order(state, given)
    if order["status"] == "delivered":
        raise DomainError("the order is delivered")
    order["address"] = given["address"]
    return order


def _open_ticket(state: State, given: Arguments) -> Any:
    ticket = {"product": given["product"], "problem": given["problem"]}
    state["tickets"].append(ticket)
    return {"ticket": 700 + len(state["tickets"])}


_NUMBER: Final = _text("number of the order, four digits")
SUPPORT: Final = Domain(
    "You answer the phone of Homely, an online shop for home appliances.",
    {
        "orders": {
            "1180": {"item": "kettle", "status": "packed", "address": "12 Elm Street"},
            "2214": {"item": "toaster", "status": "shipped", "address": "8 Hill Road"},
            "3507": {"item": "lamp", "status": "delivered", "address": "40 Park Lane"},
        },
        "tickets": [],
    },
    (
        DomainTool(
            "order_status", "Get the status of an order.", {"order_number": _NUMBER}, _order
        ),
        DomainTool("cancel_order", "Cancel an order.", {"order_number": _NUMBER}, _cancel_order),
        DomainTool(
            "return_order",
            "Request the return of a delivered order.",
            {"order_number": _NUMBER, "reason": _text("why it is returned")},
            _return_order,
        ),
        DomainTool(
            "change_address",
            "Change the address of an order that is not delivered.",
            {"order_number": _NUMBER, "address": _text("new street address")},
            _change_address,
        ),
        DomainTool(
            "open_ticket",
            "Open a ticket for a technician about a broken product.",
            {"product": _text("the product"), "problem": _text("what is wrong with it")},
            _open_ticket,
        ),
    ),
)


# --- assistant ---


def _set_timer(state: State, given: Arguments) -> Any:
    state["timers"].append(given["minutes"])
    return {"timer": given["minutes"]}


def _set_alarm(state: State, given: Arguments) -> Any:
    state["alarms"].append({"day": given["day"], "time": given["time"]})
    return {"alarm": given["time"]}


def _set_light(state: State, given: Arguments) -> Any:
    state["lights"][given["room"]] = given["state"]
    return {given["room"]: given["state"]}


def _set_temperature(state: State, given: Arguments) -> Any:
    state["degrees"] = given["degrees"]
    return {"degrees": given["degrees"]}


def _add_item(state: State, given: Arguments) -> Any:
    state["shopping"].append(given["item"])
    return {"shopping": state["shopping"]}


def _weather(state: State, given: Arguments) -> Any:
    return state["weather"].get(str(given["city"]).casefold(), "no report for this city")


HOME: Final = Domain(
    "You are the voice assistant of a home.",
    {
        "timers": [],
        "alarms": [],
        "lights": {"kitchen": "off", "bedroom": "on", "living room": "off"},
        "degrees": 20,
        "shopping": ["milk"],
        "weather": {"oslo": "snow, minus 4 degrees", "rome": "sunny, 24 degrees"},
    },
    (
        DomainTool("set_timer", "Start a timer.", {"minutes": _count("minutes")}, _set_timer),
        DomainTool(
            "set_alarm", "Set an alarm.", {"day": _choice(*_DAYS), "time": _TIME}, _set_alarm
        ),
        DomainTool(
            "set_light",
            "Switch the light of a room.",
            {"room": _choice("kitchen", "bedroom", "living room"), "state": _choice("on", "off")},
            _set_light,
        ),
        DomainTool(
            "set_temperature",
            "Set the temperature of the heating.",
            {"degrees": _count("degrees Celsius")},
            _set_temperature,
        ),
        DomainTool(
            "add_to_shopping_list",
            "Add an item to the shopping list.",
            {"item": _text("the item")},
            _add_item,
        ),
        DomainTool(
            "get_weather",
            "Get the current weather of a city.",
            {"city": _text("name of the city")},
            _weather,
        ),
    ),
)

DOMAINS: Final = {"restaurant": RESTAURANT, "bank": BANK, "support": SUPPORT, "home": HOME}
