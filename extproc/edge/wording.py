"""The words that a refused caller reads: in which language, with which retry hint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

_LONGEST = 1024
"""Characters of the header that are looked at: refusing must stay cheap, whatever is sent."""


@dataclass(frozen=True, slots=True)
class Wording:
    """The fallback's text by language.

    Attributes:
        messages: text by language tag, ``{seconds}`` already filled in.
        default: the language where neither tenant nor caller names one that we have.
        finish_reason: of the fallback, where the tenant has none of its own.
        retry_after: seconds after which a refused call may come again, 1..60.
        refusal: answer structured calls with a refusal instead of an error.
    """

    messages: Mapping[str, str]
    default: str
    finish_reason: str
    retry_after: int
    refusal: bool

    def language(self, accept_language: str, preferred: str | None) -> str:
        """Return the tenant's language, else the caller's best that we have, else the default.

        Args:
            accept_language: the header (RFC 9110, 12.5.4), or "".
            preferred: the tenant's language, or None.
        """
        if preferred in self.messages:
            return str(preferred)
        best, weight = self.default, 0.0
        for item in accept_language[:_LONGEST].split(","):
            tag, _, parameters = item.partition(";")
            language = tag.strip().lower().partition("-")[0]
            quality = _quality(parameters)
            if language in self.messages and quality > weight:
                best, weight = language, quality
        return best


def _quality(parameters: str) -> float:
    name, _, value = parameters.partition("=")
    if name.strip().lower() != "q":
        return 1.0
    try:
        return float(value)
    except ValueError:
        return 0.0
