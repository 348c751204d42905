"""XML answers: elements in, a valid document out, whatever characters the texts have."""

import re
from typing import Final
from xml.etree import ElementTree

from .webhook import Answer

MAX_PARAMETER: Final = 500
"""Characters of a parameter's name and value together: Twilio's limit."""

_NOT_IN_XML: Final = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that XML 1.0 does not allow (section 2.2)."""


def element(tag: str, text: str = "", **attributes: str) -> ElementTree.Element:
    made = ElementTree.Element(tag, {name: _clean(value) for name, value in attributes.items()})
    made.text = _clean(text) or None
    return made


def parameter(name: str, value: str) -> ElementTree.Element:
    """Parameter that the carrier passes to the stream. A value that is too long is cut."""
    return element("Parameter", name=name, value=value[: MAX_PARAMETER - len(name)])


def xml_answer(*verbs: ElementTree.Element) -> Answer:
    root = ElementTree.Element("Response")
    root.extend(verbs)
    return Answer(
        ElementTree.tostring(root, encoding="unicode", xml_declaration=False), "application/xml"
    )


def _clean(text: str) -> str:
    return _NOT_IN_XML.sub("", text)
