"""What a request body says, member by member, and what that comes to.

Rules:
- Members stay undecoded until someone needs them; prompts are skipped, never built.
- Where the lengths are, and which of them counts, is data: ``LIMITS``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from msgspec import Raw, Struct

from extproc.core.tokens import PromptParts
from extproc.openai.endpoints import Endpoint
from extproc.openai.lax import ABSENT


class Members(Struct, gc=False):
    """The members that matter, undecoded; an absent one is empty, so false."""

    model: Raw = ABSENT
    stream: Raw = ABSENT
    stream_options: Raw = ABSENT
    user: Raw = ABSENT
    metadata: Raw = ABSENT
    session_id: Raw = ABSENT
    prompt_cache_key: Raw = ABSENT
    background: Raw = ABSENT
    priority: Raw = ABSENT
    # Length.
    max_tokens: Raw = ABSENT
    max_completion_tokens: Raw = ABSENT
    max_output_tokens: Raw = ABSENT
    min_tokens: Raw = ABSENT
    thinking: Raw = ABSENT
    stop: Raw = ABSENT
    stop_sequences: Raw = ABSENT
    sampling_params: Raw = ABSENT
    # Choices.
    n: Raw = ABSENT
    best_of: Raw = ABSENT
    # Prompt.
    messages: Raw = ABSENT
    prompt: Raw = ABSENT
    prompt_embeds: Raw = ABSENT
    input: Raw = ABSENT
    system: Raw = ABSENT
    instructions: Raw = ABSENT
    documents: Raw = ABSENT
    tools: Raw = ABSENT
    token_ids: Raw = ABSENT
    # Form of the answer.
    tool_choice: Raw = ABSENT
    function_call: Raw = ABSENT
    response_format: Raw = ABSENT
    text: Raw = ABSENT
    output_config: Raw = ABSENT
    output_format: Raw = ABSENT
    structured_outputs: Raw = ABSENT
    guided_json: Raw = ABSENT
    guided_regex: Raw = ABSENT
    guided_choice: Raw = ABSENT
    guided_grammar: Raw = ABSENT
    logit_bias: Raw = ABSENT


@dataclass(frozen=True, slots=True)
class Limits:
    """How an endpoint bounds its output: the first of ``names`` that is not null counts."""

    names: tuple[str, ...]
    default: int | None = None
    """Tokens, where none of them is given; ``None``: up to the end of the context."""
    stop: str | None = None
    """The member that holds the stop sequences."""
    sampling: bool = False
    """Whether ``n``, and ``min_tokens``, which must not exceed the limit, count here."""

    @property
    def bounding(self) -> tuple[str, ...]:
        """Every member that is a length."""
        return (*self.names, "min_tokens") if self.sampling else self.names


LIMITS: Mapping[Endpoint, Limits] = {
    Endpoint.CHAT: Limits(("max_completion_tokens", "max_tokens"), stop="stop", sampling=True),
    Endpoint.COMPLETIONS: Limits(("max_tokens",), default=16, stop="stop", sampling=True),
    Endpoint.RESPONSES: Limits(("max_output_tokens",), stop="stop"),
    Endpoint.MESSAGES: Limits(("max_tokens",), stop="stop_sequences"),
    Endpoint.GENERATE: Limits(("max_tokens",), stop="stop", sampling=True),
    Endpoint.COHERE: Limits(("max_tokens",), stop="stop_sequences"),
    Endpoint.EMBEDDINGS: Limits(()),
}


class Call(Struct, frozen=True, gc=False):
    """A request body, read. Its ``repr`` shows nothing of the prompt."""

    endpoint: Endpoint
    model: str
    """Empty if absent: the engine's only model then."""
    stream: bool
    lengths: Mapping[str, int]
    """Tokens, of each member that bounds the output and is not null."""
    choices: int
    """How many texts the engine would generate, at least 1."""
    prompt_parts: PromptParts
    """An estimate of the prompt's tokens by script, at least 1 together."""
    structured: bool
    """The client expects JSON, a tool call or a grammar: plain text would break it."""
    include_usage: bool
    """A stream shall end in a chunk with the usage."""
    user: str
    session: str
    """Whom and what conversation the client says this belongs to; empty if it does not."""
    background: bool
    """The engine answers at once and generates afterwards (responses only)."""
    gzipped: bool
    """The client sent gzip. A rewritten body is not: it has to become so again."""
    body: bytes
    """What was read: decompressed, without byte order mark."""
    lenient: bool
    """Only the engine's own reader understood it; ``body`` is its JSON written anew."""
    members: Members
    limited: Members
    """Where the limits are: ``members``, or what is in its ``sampling_params``."""

    def __repr__(self) -> str:
        kind = "stream" if self.stream else "answer"
        return f"<Call {self.endpoint.value} {self.model!r}: {kind}, {len(self.body)} bytes>"

    @property
    def prompt_tokens(self) -> int:
        """An estimate, at least 1, before anything is learned of the model's tokenizer."""
        return max(1, round(sum(self.prompt_parts)))

    @property
    def max_output(self) -> int | None:
        """Tokens that the client asks for, each choice; ``None`` if it leaves that open.

        The engine's precedence decides between several. It will refuse 0 and less.
        """
        for name in LIMITS[self.endpoint].names:
            length = self.lengths.get(name)
            if length is not None:
                return length
        return None
