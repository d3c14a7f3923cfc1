"""Whether two calls ask the model for the same.

Rules:
- Equal fingerprints: the same endpoint, model and body, whatever the order of members and the spacing.
  Everything that bears on the answer counts, sampling parameters and ``stream`` included; who asks
  (``user``, ``metadata``) does not.
- Where taking a body apart would take too long, its bytes are compared; the longest have no
  fingerprint.
"""

from __future__ import annotations

from hashlib import blake2b

import msgspec

from extproc.openai.calls import Call

LARGEST_TREE = 128 * 1024
"""Bytes; taking them apart and putting them together takes about half a millisecond."""
LARGEST = 1 << 20
"""Bytes."""
_WHO = ("user", "metadata", "safety_identifier")

_decode = msgspec.json.Decoder(dict[str, object]).decode
_encode = msgspec.json.Encoder(order="deterministic").encode


def fingerprint(call: Call) -> bytes | None:
    """Return 16 bytes that tell what a call asks for, None where the body is too long for that."""
    body = call.body
    if len(body) > LARGEST:
        return None
    if len(body) <= LARGEST_TREE:
        try:
            tree = _decode(body)
            for name in _WHO:
                tree.pop(name, None)
            body = _encode(tree)
        except (msgspec.MsgspecError, RecursionError):
            pass  # Only the engine's own reader takes it: its bytes will do.
    return blake2b(body, digest_size=16, person=call.endpoint.value.encode()[:16]).digest()
