"""Tokens of a prompt that nobody has tokenized: estimated by script, corrected by real usage.

Rules this module keeps:

* An estimate splits a prompt by what it is made of; each script has a factor of its own, because
  tokenizers differ most in what they make of Chinese, and of code and digits.
* Usage that the engine reports moves the factors of the scripts that the prompt had, by their part
  in it. A factor stays within `WIDEST` of the first guess, whatever is reported.
* Media and templates are not learned: what a report has beyond the text is bounded, not explained.
"""

from __future__ import annotations

from typing import NamedTuple

WIDEST = 4.0
"""A factor is at most this, and at least 1 over this."""
GAIN = 0.05
"""How far one report moves the factors towards what it says."""


class PromptParts(NamedTuple):
    """A first guess at a prompt's tokens, by what makes them.

    Attributes:
        latin: letters and blanks of ASCII.
        wide: characters beyond ASCII, as of Chinese, Japanese and Korean.
        other: digits, punctuation, markup and code.
        media: images and sounds, and token ids, which are counted; not corrected.
    """

    latin: float
    wide: float
    other: float
    media: float = 0.0

    @property
    def text(self) -> tuple[float, float, float]:
        """The parts that are corrected."""
        return self[:3]


class TokenEstimator:
    """What one model's tokenizer makes of prompts."""

    def __init__(self) -> None:
        self.factors = [1.0, 1.0, 1.0]

    def __repr__(self) -> str:
        latin, wide, other = self.factors
        return f"<TokenEstimator: latin × {latin:.2f}, wide × {wide:.2f}, other × {other:.2f}>"

    def estimate(self, parts: PromptParts) -> int:
        """Return the tokens that a prompt probably has, at least 1."""
        return max(1, round(self._text(parts) + parts.media))

    def observe(self, parts: PromptParts, tokens: int) -> None:
        """Learn from the number of tokens that the engine reported for a prompt."""
        expected = self._text(parts)
        if expected <= 0.0 or tokens <= 0 or parts.media:
            return
        off = min(WIDEST, max(1.0 / WIDEST, tokens / expected)) - 1.0
        for place, part in enumerate(parts.text):
            share = part * self.factors[place] / expected
            moved = self.factors[place] * (1.0 + GAIN * share * off)
            self.factors[place] = min(WIDEST, max(1.0 / WIDEST, moved))

    def _text(self, parts: PromptParts) -> float:
        return sum(part * factor for part, factor in zip(parts.text, self.factors, strict=True))
