"""Answers on their way to the client: read, and changed or ended where a task or an eviction asks.

`open_editor` chooses by what the engine says that its answer is. An answer in an encoding is read, not
edited; so is every answer that is neither a stream of events nor of an endpoint that we can end.
"""

from __future__ import annotations

from collections.abc import Mapping

from extproc.openai.early_stop import EarlyStop
from extproc.openai.endpoints import Endpoint
from extproc.openai.sse import SSE
from extproc.openai.streams.chat import ChunkDialect
from extproc.openai.streams.dialect import Dialect
from extproc.openai.streams.editor import Asked, Edit, Editor, Ending
from extproc.openai.streams.event_editor import EventEditor
from extproc.openai.streams.messages import MessagesDialect
from extproc.openai.streams.responses import ResponsesDialect
from extproc.openai.streams.unedited import EncodedReader, JsonReader
from extproc.openai.usage import Usage

__all__ = ["Asked", "EarlyStop", "Edit", "Editor", "Ending", "Usage", "open_editor"]

_DIALECTS: Mapping[Endpoint, type[Dialect]] = {
    Endpoint.CHAT: ChunkDialect,
    Endpoint.COMPLETIONS: ChunkDialect,
    Endpoint.RESPONSES: ResponsesDialect,
    Endpoint.MESSAGES: MessagesDialect,
}
_NO_EARLY_STOP = EarlyStop()


def open_editor(
    asked: Asked,
    *,
    content_type: str,
    content_encoding: str = "",
    early_stop: EarlyStop = _NO_EARLY_STOP,
    strip_usage: bool = False,
) -> Editor:
    """Return the editor of an answer.

    Args:
        asked: what of the call matters for its answer.
        content_type: the response's header.
        content_encoding: the response's header, empty if there is none.
        early_stop: what ends the answer before the engine would.
        strip_usage: the usage chunk was asked for by us alone, and is not passed on.
    """
    encoding = content_encoding.strip().lower()
    encoded = encoding not in ("", "identity")
    if encoded:
        early_stop, strip_usage = _NO_EARLY_STOP, False
    editor: Editor = JsonReader()
    if content_type.partition(";")[0].strip().lower() == SSE:
        dialect = _DIALECTS.get(asked.endpoint, ChunkDialect)(asked)
        dialect.sealed = asked.endpoint not in _DIALECTS
        editor = EventEditor(dialect, early_stop, strip_usage=strip_usage)
    return EncodedReader(editor, encoding) if encoded else editor
