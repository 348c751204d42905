"""Domains of the tuning dialogues alone: other tools, and other ways to write their schemas, than
those that are judged, so that a setting fitted here does not know the judged tools."""

from collections.abc import Mapping
from typing import Any, Final

from .domains import Arguments, Domain, DomainError, DomainTool, State


def _text(description: str) -> dict[str, Any]:
    return {"type": "string", "description": description}


def _integer(description: str) -> dict[str, Any]:
    return {"type": "integer", "description": description}


def _noted(kind: str) -> Any:
    """Run function that appends the call's arguments to the list `kind` of the state."""

    def run(state: State, given: Arguments) -> Any:
        state[kind].append(dict(given))
        return {"done": kind, **given}

    return run


def _looked_up(kind: str, key: str) -> Any:
    """Run function that reads the entry of the argument `key` from the table `kind`."""

    def run(state: State, given: Arguments) -> Any:
        table: Mapping[str, Any] = state[kind]
        wanted = str(given[key]).casefold()
        if wanted not in table:
            raise DomainError(f"no {key} {given[key]}")
        return table[wanted]

    return run


CLINIC: Final = Domain(
    "You answer the phone of a dentist's practice. Today is Wednesday, 2026-03-11.",
    {"appointments": [], "cancelled": [], "callbacks": [], "prices": {"cleaning": "90 dollars"}},
    (
        DomainTool(
            "make_appointment",
            "Make an appointment for a patient.",
            {
                "patient": _text("the patient's name"),
                "date": {"type": "string", "format": "date"},
                "time": {"type": "string", "pattern": "^([01][0-9]|2[0-3]):[0-5][0-9]$"},
            },
            _noted("appointments"),
        ),
        DomainTool(
            "cancel_appointment",
            "Cancel the appointment of a patient.",
            {"patient": _text("the patient's name")},
            _noted("cancelled"),
        ),
        DomainTool(
            "request_callback",
            "Have the doctor call back.",
            {"phone": _text("phone number, digits only")},
            _noted("callbacks"),
        ),
        DomainTool(
            "get_price",
            "Get the price of a treatment.",
            {"treatment": {"type": "string", "enum": ["cleaning", "filling", "whitening"]}},
            _looked_up("prices", "treatment"),
        ),
    ),
)

TAXI: Final = Domain(
    "You take orders for City Taxi.",
    {"rides": [], "cancelled": [], "lost": [], "cars": {"52": "4 minutes away"}},
    (
        DomainTool(
            "order_taxi",
            "Order a taxi.",
            {
                "pickup": _text("street address where the passenger waits"),
                "destination": _text("where the passenger wants to go"),
                "passengers": _integer("number of passengers"),
            },
            _noted("rides"),
            optional=("passengers",),
        ),
        DomainTool(
            "where_is_my_taxi",
            "Tell how far away an ordered car is.",
            {"car": _integer("number of the car")},
            _looked_up("cars", "car"),
        ),
        DomainTool(
            "cancel_taxi",
            "Cancel a ride.",
            {"car": _integer("number of the car")},
            _noted("cancelled"),
        ),
        DomainTool(
            "report_lost_item",
            "Report something left in a car.",
            {"item": _text("what was lost"), "car": _integer("number of the car")},
            _noted("lost"),
        ),
    ),
)

CINEMA: Final = Domain(
    "You sell the tickets of the Roxy cinema.",
    {"tickets": [], "refunds": [], "members": [], "films": {"dune": "at 18:00 and 21:15"}},
    (
        DomainTool(
            "show_times",
            "Get the times of a film.",
            {"film": _text("title of the film")},
            _looked_up("films", "film"),
        ),
        DomainTool(
            "buy_tickets",
            "Buy tickets for a film.",
            {
                "film": _text("title of the film"),
                "count": {"type": "integer", "minimum": 1, "maximum": 10},
                "start": {"type": "string", "description": "beginning of the show, as HH:MM"},
                "row": {"type": "string", "enum": ["front", "middle", "back"]},
            },
            _noted("tickets"),
            optional=("row",),
        ),
        DomainTool(
            "refund_ticket",
            "Refund a ticket.",
            {"ticket_code": {"type": "string", "pattern": "^[0-9]{6}$"}},
            _noted("refunds"),
        ),
        DomainTool(
            "join_club",
            "Sign up a member of the film club.",
            {"full_name": _text("first and last name"), "age": _integer("age in years")},
            _noted("members"),
        ),
    ),
)

HOTEL: Final = Domain(
    "You are the room service of the Harbor Hotel.",
    {"orders": [], "wake_ups": [], "repairs": [], "messages": [], "codes": {"lobby": "blue42"}},
    (
        DomainTool(
            "order_food",
            "Bring food or drinks to a room.",
            {"room": _integer("number of the room"), "dish": _text("what to bring")},
            _noted("orders"),
        ),
        DomainTool(
            "wake_up_call",
            "Wake a guest by phone.",
            {"room": _integer("number of the room"), "time": {"type": "string", "format": "time"}},
            _noted("wake_ups"),
        ),
        DomainTool(
            "report_defect",
            "Send somebody to repair a thing in a room.",
            {"room": _integer("number of the room"), "defect": _text("what is broken, and how")},
            _noted("repairs"),
        ),
        DomainTool(
            "wifi_password",
            "Get the password of the wireless network.",
            {"area": {"type": "string", "enum": ["lobby", "rooms", "restaurant"]}},
            _looked_up("codes", "area"),
        ),
    ),
)

CAR: Final = Domain(
    "You are the voice assistant of a car.",
    {"routes": [], "played": [], "climate": [], "windows": [], "calls": [], "volume": []},
    (
        DomainTool(
            "navigate_to",
            "Guide the driver to a place.",
            {"place": _text("the destination")},
            _noted("routes"),
        ),
        DomainTool(
            "play_music",
            "Play music.",
            {"artist_or_style": _text("artist or style of music")},
            _noted("played"),
        ),
        DomainTool(
            "set_seat_heating",
            "Set the heating of a seat.",
            {
                "seat": {"type": "string", "enum": ["driver", "passenger"]},
                "level": {"type": "integer", "minimum": 0, "maximum": 3},
            },
            _noted("climate"),
        ),
        DomainTool(
            "move_window",
            "Open or close a window.",
            {
                "window": {"type": "string", "enum": ["left", "right", "rear"]},
                "action": {"type": "string", "enum": ["open", "close"]},
            },
            _noted("windows"),
        ),
        DomainTool(
            "call_contact",
            "Call a person of the address book.",
            {"contact": _text("the person")},
            _noted("calls"),
        ),
        DomainTool(
            "set_volume",
            "Set the volume.",
            {"percent": _integer("0 to 100")},
            _noted("volume"),
        ),
    ),
)

TUNING_DOMAINS: Final = {
    "clinic": CLINIC,
    "taxi": TAXI,
    "cinema": CINEMA,
    "hotel": HOTEL,
    "car": CAR,
}
