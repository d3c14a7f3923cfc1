"""What a call of a drill looks like on the wire.

Rules this module keeps:

* No two calls share a prefix, so no engine saves work that the model in virtual time does not save.
* What only the future knows, how long the answer will be, goes to an emulated engine in a header
  that no gateway looks at. A real engine is made to generate as much by ``ignore_eos``; then
  ``max_tokens`` tells every gateway the length, which flatters those that heed it.
"""

from __future__ import annotations

import json
from random import Random

from extproc.sim.drill.workload import Call
from extproc.sim.emulator.requests import BYTES_PER_TOKEN
from extproc.sim.emulator.server import OUTPUT_HEADER

PATH = "/v1/chat/completions"
TENANT_HEADER = "x-tenant-id"
_TEMPLATE_BYTES = 50
"""What a chat template puts around one message of the user."""
_WORDS = ("order", "refund", "parcel", "invoice", "address", "payment", "coupon", "delivery")


class Writer:
    """Makes headers and bodies."""

    def __init__(self, model: str, *, emulated: bool, seed: int) -> None:
        self._model = model
        self._emulated = emulated
        rng = Random(f"{seed}/words")  # noqa: S311 (no secrets)
        self._text = " ".join(rng.choices(_WORDS, k=20_000))

    def headers(self, call: Call) -> tuple[tuple[str, str], ...]:
        """Return what says who calls."""
        who = (TENANT_HEADER, call.tenant)
        return (who, (OUTPUT_HEADER, str(call.output))) if self._emulated else (who,)

    def body(self, call: Call) -> bytes:
        """Return the body: a streamed chat."""
        own = f"{call.id} "
        length = max(len(own), call.prompt * BYTES_PER_TOKEN - _TEMPLATE_BYTES)
        fields: dict[str, object] = {
            "model": self._model,
            "messages": [{"role": "user", "content": (own + self._text)[:length]}],
            "max_tokens": call.max_tokens if self._emulated else call.output,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if not self._emulated:
            fields["ignore_eos"] = True
        return json.dumps(fields).encode()
