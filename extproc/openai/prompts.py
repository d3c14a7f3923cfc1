"""How much a call makes the engine do: texts to generate, tokens to read.

Rules:
- Both come from the undecoded body. Where exactness would take longer than a call is worth,
  counting errs upwards.
- Token ids are counted, and images and sounds by the piece, whether linked or inside the body.
- The estimate of text has no tokenizer. A token is about 4 bytes of UTF-8, in Latin script and in Chinese
  alike (a Chinese character has 3 bytes and makes 0.6 to 0.8 tokens). How much of it is in which
  script is told as well, so that real usage can correct it (`extproc.core.tokens`).
"""

from __future__ import annotations

import re
import string

import msgspec
from msgspec import Raw

from extproc.core.tokens import PromptParts
from extproc.openai import lax
from extproc.openai.calls import LIMITS, Members
from extproc.openai.endpoints import Endpoint
from extproc.openai.lax import Unreadable

_BYTES_PER_TOKEN = 4
_ESCAPE_EXCESS = 3
"""Bytes that ``\\uXXXX`` is longer than its character."""
_SAMPLE = 64 * 1024
"""Bytes in which escapes and scripts are counted."""
_ASCII = bytes(range(128))
_LETTERS = (string.ascii_letters + " ").encode()
_NOT_SHOWN = ("response_format", "structured_outputs", "guided_json", "logit_bias", "metadata")
"""Members that may be long and that no template shows to the model."""
_MOST_BEST_OF = 20
"""OpenAI's limit. Engines of today ignore the member and refuse nothing, so without one a call could
hold the promise of any amount of work for as long as it runs."""
_COUNTED = 32 * 1024
"""Prompts in a batch that are counted exactly."""

_MEDIA_TOKENS = 1024
"""What an image or a sound costs, whatever its bytes: a usual size for vision models."""
_MEDIA_MEMBER = 8 * 1024
"""Bytes; shorter prompts are not searched."""
_MEDIA_PARTS = 64
"""Parts of each kind that are looked for."""
_MEDIA_BYTES = 1024
"""What is shorter counts as text."""
_LINKS = (
    (b'_url"', 6, re.compile(rb'(?<!\\)"(?:image|video|audio)_url"\s*:')),
    (
        b'"source"',
        0,
        re.compile(rb'(?<!\\)"source"\s*:\s*\{\s*"type"\s*:\s*"(?:url|base64|file)"'),
    ),
)
"""Parts that the engine fetches, or that are in the body all the same: what is found quickly, how far before
it they begin, and what they are. Searched for as patterns they would take 9 ms per MiB."""
_MOST_LINKS = 1000
"""Of each kind; where there are more, whatever could be one counts."""
_NO_COMMA = bytes(set(range(256)) - set(b","))
_IDS = re.compile(rb"\[\[?[0-9]")
_MEDIA_MARKERS = (b";base64,", b'"data"')
_MEDIA_KEY = re.compile(
    rb'(?<!\\)"(?:(?:url|image_url|file_data)"\s*:\s*"data:[\w/+.;=-]*,|data"\s*:\s*")\Z'
)
_MEDIA_HEAD = re.compile(rb"[A-Za-z0-9+/_=-]{512}")
_WINDOW = 160
"""Bytes before a part in which its key is looked for, and at the beginning of a prompt."""


class _Row(msgspec.Struct, array_like=True, gc=False):
    """An array whose items are skipped."""


_decode_texts = msgspec.json.Decoder(list[str]).decode
_decode_rows = msgspec.json.Decoder(list[_Row]).decode


def choices(endpoint: Endpoint, members: Members, limited: Members) -> int:
    """Return how many texts the engine would generate, at least 1; raise ``Unreadable``."""
    if not LIMITS[endpoint].sampling:
        return 1
    best_of = lax.integer(members.best_of, "best_of") or 1
    if best_of > _MOST_BEST_OF:
        raise Unreadable(f"best_of must be at most {_MOST_BEST_OF}.", "best_of")
    each = max(1, lax.integer(limited.n, "n") or 1, best_of)
    if endpoint is Endpoint.CHAT:
        return each * max(1, _rows(members.messages))
    prompts = _prompts(members.prompt) + _prompts(members.prompt_embeds)
    return each * max(1, prompts)


def _prompts(raw: Raw) -> int:
    if not raw:
        return 0
    return _rows(raw) or _texts(raw) or 1


def _rows(raw: Raw) -> int:
    """Return the length of an array of arrays, else 0."""
    if not _starts(raw, b"[["):
        return 0
    most = bytes(raw).count(b"[")
    if most > _COUNTED:
        return most
    try:
        return len(_decode_rows(raw))
    except msgspec.ValidationError:
        return 0
    except msgspec.DecodeError:  # Lone surrogates.
        return most


def _texts(raw: Raw) -> int:
    """Return the length of an array of strings, else 0."""
    if not _starts(raw, b'["'):
        return 0
    literal = bytes(raw)
    # No opening quote follows a backslash, so there is at least one such quote for each string.
    most = literal.count(b'"') - literal.count(b'\\"')
    if most > 2 * _COUNTED:
        return most
    try:
        return len(_decode_texts(raw))
    except msgspec.ValidationError:
        return 0
    except msgspec.DecodeError:  # Lone surrogates.
        return most


def _starts(raw: Raw, opening: bytes) -> bool:
    return _beginning(raw).startswith(opening)


def _beginning(raw: Raw) -> bytes:
    return bytes(memoryview(raw)[:_WINDOW]).translate(None, b" \t\r\n")


def prompt_parts(body: bytes, members: Members) -> PromptParts:
    """Estimate the prompt's tokens by script, at least 1 together.

    The whole body counts, except what no template shows to the model, so no member hides a prompt.
    """
    size = len(body) - sum(map(len, map(members.__getattribute__, _NOT_SHOWN)))
    parts = ids = 0
    for raw in (members.prompt, members.token_ids, members.input):
        if _are_ids(raw):
            ids += len(bytes(raw).translate(None, _NO_COMMA)) + 1
            size -= len(raw)
    for raw in (members.messages, members.input):
        if raw and not _are_ids(raw):
            found, encoded = _media(body, raw)
            parts += found
            size -= encoded
    sample = body[:_SAMPLE]
    escapes = sample.count(b"\\u") / len(sample)
    text = int(size * max(0.0, 1 - escapes * _ESCAPE_EXCESS)) // _BYTES_PER_TOKEN
    exact = parts * _MEDIA_TOKENS + ids
    if text + exact < 1:
        text = 1
    each = text / len(sample)
    wide = len(sample.translate(None, _ASCII)) * each
    other = len(sample.translate(None, _LETTERS)) * each - wide
    return PromptParts(text - wide - other, wide, other, float(exact))


def _are_ids(raw: Raw) -> bool:
    return bool(raw) and _IDS.match(_beginning(raw)) is not None


def _media(body: bytes, raw: Raw) -> tuple[int, int]:
    """Return how many images and sounds a prompt has, and the bytes of those that are inside it."""
    linked = encoded = size = 0
    for marker, before, link in _LINKS:
        if marker in body:
            linked += _linked(bytes(raw), marker, before, link)
    if len(raw) > _MEDIA_MEMBER:
        markers = [marker for marker in _MEDIA_MARKERS if marker in body]
        if markers:
            encoded, size = _encoded(bytes(raw), markers)
    return max(linked, encoded), size


def _linked(prompt: bytes, marker: bytes, before: int, link: re.Pattern[bytes]) -> int:
    most = prompt.count(marker)
    if most > _MOST_LINKS:
        return most
    found = at = 0
    for _ in range(most):
        at = prompt.find(marker, at + 1)
        found += link.match(prompt, at - before) is not None
    return found


def _encoded(prompt: bytes, markers: list[bytes]) -> tuple[int, int]:
    """Return how many base64 parts there are, and their bytes.

    Only what stands under a media key counts as such: inside of a text the key's quotes would be
    escaped, so a prompt does not pass for an image.
    """
    parts = encoded = 0
    for marker in markers:
        end = 0
        for _ in range(_MEDIA_PARTS):
            begin = prompt.find(marker, end)
            if begin < 0:
                break
            begin += len(marker)
            if marker == b'"data"':
                begin = prompt.find(b'"', begin) + 1
            end = prompt.find(b'"', begin)
            key = _MEDIA_KEY.search(prompt[max(0, begin - _WINDOW) : begin])
            if key and end - begin >= _MEDIA_BYTES and _MEDIA_HEAD.match(prompt, begin):
                parts += 1
                encoded += end - begin
    return parts, encoded
