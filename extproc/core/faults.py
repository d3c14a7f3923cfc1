"""Where faults of our own code can meet a call: the closed set of places that metrics and logs name."""

from __future__ import annotations

from enum import StrEnum


class Place(StrEnum):
    """What was being done."""

    DECODE = "decode"
    """Taking a message of Envoy's apart."""
    JUDGE = "judge"
    """Reading a request and deciding about it."""
    CONCLUDE = "conclude"
    """Making the reply to a call that had waited, or answering one that was admitted after all."""
    PUMP = "pump"
    """Choosing whose turn it is, and who has to make room."""
    ANSWER = "answer"
    """Looking at the headers of a response."""
    EDIT = "edit"
    """Reading or changing a part of a response's body."""
    ENCODE = "encode"
    """Writing a reply to Envoy."""
    RELEASE = "release"
    """Taking back what a call held."""
