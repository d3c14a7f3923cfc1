"""One reply of the emulator: which sequences it takes, and what is sent of them as they grow.

Pure, but for the growing ``Generation`` that it reads.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import log

from extproc.sim.emulator.bodies import (
    Bodies,
    ChatBodies,
    CompletionsBodies,
    Head,
    Output,
    scripted,
)
from extproc.sim.emulator.driver import Generation
from extproc.sim.emulator.event_bodies import MessagesBodies, ResponsesBodies
from extproc.sim.emulator.requests import Call, Endpoint
from extproc.sim.engine import Request

_BODIES: Mapping[Endpoint, type[Bodies]] = {
    Endpoint.CHAT: ChatBodies,
    Endpoint.COMPLETIONS: CompletionsBodies,
    Endpoint.RESPONSES: ResponsesBodies,
    Endpoint.MESSAGES: MessagesBodies,
}


@dataclass(frozen=True, slots=True)
class OutputLength:
    """How many tokens come before the end of a sequence: lognormal.

    Attributes:
        median: tokens.
        sigma: standard deviation of the logarithm.
    """

    median: float = 150.0
    sigma: float = 0.8

    def draw(self, chance: random.Random) -> int:
        """Return a length, at least 1."""
        return max(1, round(chance.lognormvariate(log(self.median), self.sigma)))


def sequences(
    call: Call,
    unique: str,
    block_size: int,
    length: OutputLength,
    seed: int,
    wanted: int | None = None,
) -> list[Request]:
    """Return what the engine is to generate for a call: ``n`` sequences for each prompt.

    Args:
        call: what is asked.
        unique: starts the ids of the sequences; never used before.
        block_size: tokens of a KV block.
        length: draws the output lengths, equal ones for equal prompts and seeds.
        seed: of the emulator.
        wanted: take this output length, draw none.
    """
    chance = random.Random(f"{seed}:{call.seed}")  # noqa: S311 - a model, not a secret
    requests: list[Request] = []
    for prompt in call.prompts:
        names = prompt.block_names(block_size)
        for _ in range(call.n):
            drawn = call.max_tokens if call.ignore_eos else wanted or length.draw(chance)
            tokens = min(call.max_tokens, max(drawn, call.min_tokens))
            sequence_id = f"{unique}-{len(requests)}"
            requests.append(Request(sequence_id, prompt.tokens, tokens, call.priority, names))
    return requests


class Reply:
    """What is sent to the client; ``text`` is what every sequence begins with.

    Attributes:
        reasons: why each sequence ends, ``stop`` or ``length``.
    """

    def __init__(
        self, head: Head, requests: Sequence[Request], generation: Generation, text: str = ""
    ) -> None:
        limit = head.call.max_tokens
        self.reasons = ["stop" if r.output_tokens < limit else "length" for r in requests]
        self._bodies = _BODIES[head.call.endpoint](head)
        self._seed = head.call.seed
        self._generation = generation
        self._text = text
        self._sent = [0] * len(requests)
        self._opened = False

    def news(self) -> bytes:
        """Return the events for what was generated since the last call."""
        events: list[bytes] = []
        if not self._opened:
            self._opened = True
            events.append(self._bodies.opening())
        for index, tokens in enumerate(self._generation.tokens):
            sent = self._sent[index]
            if tokens > sent:
                self._sent[index] = tokens
                reason = self.reasons[index] if self._generation.ended[index] else None
                text = scripted(self._text, self._seed + index, sent, tokens)
                events.append(self._bodies.delta(index, text, tokens, reason))
        return b"".join(events)

    def closing(self) -> bytes:
        """Return the events after the last token."""
        return self._bodies.closing(self._outputs())

    def whole(self) -> bytes:
        """Return the body of a reply that is not streamed."""
        return self._bodies.whole(self._outputs())

    def _outputs(self) -> list[Output]:
        return [
            Output(scripted(self._text, self._seed + index, 0, tokens), tokens, self.reasons[index])
            for index, tokens in enumerate(self._generation.tokens)
        ]
