"""What an answer's editor costs per chunk: ``python -m bench.editors`` prints a line per endpoint.

Chunks are those of the emulated engine, one token each. The time is processor time of `Editor.feed`,
the best of several runs: a busy machine makes it longer, never shorter.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Mapping

from extproc.openai import endpoints
from extproc.openai.streams import Asked, EarlyStop, open_editor
from extproc.sim.emulator.bodies import Bodies, ChatBodies, CompletionsBodies, Head
from extproc.sim.emulator.event_bodies import MessagesBodies, ResponsesBodies
from extproc.sim.emulator.requests import Endpoint, read_call

CHUNKS = 2000
RUNS = 9
RULES: Mapping[str, EarlyStop] = {
    "read only": EarlyStop(),
    "complete_json": EarlyStop(complete_json=True),
    "stop words": EarlyStop(stop=("\n\nEND", "User:")),
    "runaway": EarlyStop(repetition=True, whitespace=True),
    "all": EarlyStop(True, True, True, ("\n\nEND", "User:")),
}
BODIES: Mapping[Endpoint, type[Bodies]] = {
    Endpoint.CHAT: ChatBodies,
    Endpoint.COMPLETIONS: CompletionsBodies,
    Endpoint.MESSAGES: MessagesBodies,
    Endpoint.RESPONSES: ResponsesBodies,
}


def stream(endpoint: Endpoint, rng: random.Random) -> list[bytes]:
    """Return the opening of a stream and its chunks."""
    asked = {"model": "m", "messages": [], "input": "x", "prompt": "x", "max_tokens": 9}
    call = read_call(
        endpoint, json.dumps(asked | {"stream": True}).encode(), model="m", max_model_len=99
    )
    bodies = BODIES[endpoint](Head("0123456789abcdef", 1_700_000_000, "m", call))
    words = [
        " " + "".join(rng.choices("abcdefghijkl", k=rng.randrange(1, 9))) for _ in range(CHUNKS)
    ]
    deltas = [bodies.delta(0, word, number + 1, None) for number, word in enumerate(words)]
    return [bodies.opening(), *deltas]


def cost(endpoint: Endpoint, chunks: list[bytes], rules: EarlyStop) -> float:
    """Return the seconds for each chunk."""
    kind = endpoints.endpoint_of(endpoint)
    if kind is None:
        raise ValueError(endpoint)
    best = float("inf")
    for _ in range(RUNS):
        editor = open_editor(Asked(kind), content_type="text/event-stream", early_stop=rules)
        begun = time.process_time()
        for chunk in chunks:
            editor.feed(chunk)
        best = min(best, time.process_time() - begun)
    return best / len(chunks)


def main() -> None:
    """Print what a chunk costs in each mode."""
    rng = random.Random(1)  # noqa: S311 (no secrets)
    for endpoint in BODIES:
        chunks = stream(endpoint, rng)
        costs = [
            f"{name} {cost(endpoint, chunks, rules) * 1e6:.1f}" for name, rules in RULES.items()
        ]
        print(f"{endpoint}: µs per chunk of {len(chunks[1])} bytes: {', '.join(costs)}")  # noqa: T201


if __name__ == "__main__":
    main()
