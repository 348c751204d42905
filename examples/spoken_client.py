"""Say a recording to the agent with the OpenAI SDK and save the spoken answer.

    pip install 'openai[realtime]'
    python spoken_client.py question.wav answer.wav

The question is a WAV file: 24 kHz, mono, 16 bit, which is what the protocol carries.
"""

import argparse
import asyncio
import base64
import wave
from pathlib import Path

from openai import AsyncOpenAI
from openai.resources.realtime.realtime import AsyncRealtimeConnection

RATE_HZ = 24_000
FRAME_BYTES = RATE_HZ // 50 * 2  # 20 ms
SILENCE_S = 15  # a microphone goes on after the question: the server hears that the turn is over


def read_pcm(path: Path) -> bytes:
    with wave.open(str(path)) as file:
        if (file.getframerate(), file.getnchannels(), file.getsampwidth()) != (RATE_HZ, 1, 2):
            raise SystemExit(f"{path}: convert it first: ffmpeg -i {path} -ar 24000 -ac 1 out.wav")
        pcm: bytes = file.readframes(file.getnframes())
        return pcm


async def speak(call: AsyncRealtimeConnection, pcm: bytes) -> None:
    """Send audio at the speed of a microphone. Detection of the turn's end depends on it."""
    pcm += bytes(SILENCE_S * RATE_HZ * 2)
    for first in range(0, len(pcm), FRAME_BYTES):
        frame = pcm[first : first + FRAME_BYTES]
        await call.input_audio_buffer.append(audio=base64.b64encode(frame).decode())
        await asyncio.sleep(0.02)


async def listen(call: AsyncRealtimeConnection) -> bytes:
    """Return the answer's PCM."""
    answer = bytearray()
    async for event in call:
        match event.type:
            case "conversation.item.input_audio_transcription.completed":
                print("you:  ", event.transcript)
            case "response.output_audio.delta":
                answer += base64.b64decode(event.delta)
            case "response.output_audio_transcript.done":
                print("agent:", event.transcript)
            case "response.done" if event.response.status == "completed":
                break
            case "response.done":
                answer.clear()  # you went on speaking: the next response answers all of it
            case "error":
                raise SystemExit(event.error.message)
    return bytes(answer)


async def talk(url: str, agent: str, question: bytes) -> bytes:
    client = AsyncOpenAI(api_key="none", websocket_base_url=url)
    async with client.realtime.connect(model=agent) as call, asyncio.TaskGroup() as group:
        microphone = group.create_task(speak(call, question))
        answer = await listen(call)
        microphone.cancel()
    return answer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("question", type=Path)
    parser.add_argument("answer", type=Path)
    parser.add_argument("--url", default="ws://localhost:8080/v1")
    parser.add_argument("--agent", default="default", help="a name of [agents.NAME]")
    options = parser.parse_args()
    pcm = asyncio.run(talk(options.url, options.agent, read_pcm(options.question)))
    with wave.open(str(options.answer), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(RATE_HZ)
        file.writeframes(pcm)
    print(f"{len(pcm) / 2 / RATE_HZ:.1f} s of speech in {options.answer}")


if __name__ == "__main__":
    main()
