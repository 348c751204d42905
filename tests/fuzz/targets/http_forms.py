"""Multipart forms with an uploaded file, as `/v1/audio/transcriptions` takes them.

The first byte decides how the body is cut, the first line is the content type, the rest the body.
A form is read, or refused in words.
"""

import random
from typing import Final

from starlette.datastructures import UploadFile

from agent.http.multipart import MAX_FIELD_BYTES, read_form
from agent.http.openai.transcription_request import parse_transcription
from llm_engine.errors import RequestError
from tests.fuzz.connections import FuzzLoop
from tests.fuzz.target import MAX_MESSAGE_CHARS, Target
from tests.fuzz.targets.http_bodies import request_with

KIND: Final = b"multipart/form-data; boundary=x"
LOOP: Final = FuzzLoop()


def part(name: bytes, value: bytes, *more: bytes) -> bytes:
    """One field; `more`: lines of its head, a filename among them."""
    head = b'Content-Disposition: form-data; name="' + name + b'"'
    return b"--x\r\n" + b"\r\n".join((head + b"".join(more), b"", value)) + b"\r\n"


FILE: Final = part(b"file", b"RIFF\x00\xff", b'; filename="a.wav"\r\nContent-Type: audio/wav')
FIELDS: Final = tuple(
    part(*each)
    for each in (
        (b"model", b"whisper-1"),
        (b"language", b"de"),
        (b"prompt", "für".encode()),
        (b"response_format", b"verbose_json"),
        (b"timestamp_granularities[]", b"word"),
        (b"timestamp_granularities[]", b"segment"),
        (b"temperature", b"0.2"),
        (b"stream", b"true"),
        (b"include[]", b"logprobs"),
        (b"file", b"text"),
    )
)
HEADS: Final = (
    b"Content-Transfer-Encoding: base64", b"Content-Type: text/plain; charset=utf-16",
    b'Content-Disposition: form-data; name="a"; filename*=UTF-8\'\'%ff', b"Content-Disposition: x",
    b'Content-Disposition: form-data; name="\xff"', b'Content-Disposition: form-data; filename=""',
    b"--x--", b"--x", b"--y", b"", b"x" * 200,
)  # fmt: skip
KINDS: Final = (
    KIND, b'multipart/form-data; boundary="x"', b"multipart/form-data", b"application/json",
    b"multipart/mixed; boundary=x", b"multipart/form-data; boundary=x; charset=utf-16",
    b"multipart/form-data; boundary=" + b"x" * 100,
    b"multipart/form-data; charset=latin-1; boundary=x",
)  # fmt: skip


def examine(data: bytes) -> None:
    """One form."""
    size = (1 << 20, 1, 5, 64)[data[0] % 4] if data else 1
    kind, _, body = data[1:].partition(b"\n")
    LOOP.run(_read(kind, body, size))


async def _read(kind: bytes, body: bytes, size: int) -> None:
    try:
        async with read_form(request_with(body, kind, size)) as form:
            fields = form.multi_items()
            files = [value for _, value in fields if isinstance(value, UploadFile)]
            assert len(files) <= 1, files
            for file in files:
                assert len(await file.read()) == file.size, file
            texts = [(name, value) for name, value in fields if isinstance(value, str)]
            for name, value in texts:
                assert len(value.encode()) <= 2 * MAX_FIELD_BYTES, name
            asked = parse_transcription(texts)
            assert asked.answer, asked
    except RequestError as error:
        assert str(error), error
        assert len(str(error)) <= MAX_MESSAGE_CHARS, error


def change(data: bytes, chance: random.Random) -> bytes | None:
    """A part, a line or the content type more or less; or as bytes."""
    if chance.random() < 0.4:
        return None
    kind, _, body = data[1:].partition(b"\n")
    parts = body.split(b"--x\r\n")
    what = chance.random()
    if what < 0.2:
        kind = chance.choice(KINDS)
    elif what < 0.6:
        parts.insert(chance.randrange(len(parts) + 1), chance.choice((FILE, *FIELDS))[5:])
    elif what < 0.7 and len(parts) > 1:
        del parts[chance.randrange(len(parts))]
    else:
        at = chance.randrange(len(parts))
        lines = parts[at].split(b"\r\n")
        lines.insert(chance.randrange(len(lines)), chance.choice(HEADS))
        parts[at] = b"\r\n".join(lines)
    return data[:1] + kind + b"\n" + b"--x\r\n".join(parts)


def seeds() -> list[bytes]:
    end = b"--x--\r\n"
    return [
        b"\x00" + KIND + b"\n" + FILE + b"".join(FIELDS[:7]) + end,
        b"\x01" + KIND + b"\n" + FIELDS[0] + FILE + FIELDS[7] + end,
        *(b"\x02" + KIND + b"\n" + FILE + field + end for field in FIELDS),
        *(b"\x03" + kind + b"\n" + FILE + end for kind in KINDS),
    ]


TARGET: Final = Target(
    examine, seeds, change, words=[*HEADS, b"--x\r\n", b"--x--\r\n", b"\r\n\r\n", b'filename="a"']
)
