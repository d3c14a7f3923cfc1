"""How streams are fed to their editors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from extproc.openai.endpoints import Endpoint
from extproc.openai.streams import Asked, Editor, open_editor


@pytest.fixture
def editor() -> Callable[..., Editor]:
    """Make the editor of a stream of events; what is no setting of it is what was asked."""

    def make(endpoint: Endpoint, **settings: Any) -> Editor:
        names = ("content_type", "content_encoding", "early_stop", "strip_usage")
        options = {name: settings.pop(name) for name in names if name in settings}
        options = {"content_type": "text/event-stream; charset=utf-8", **options}
        return open_editor(Asked(endpoint, **settings), **options)

    return make


@pytest.fixture
def edited() -> Callable[..., tuple[bytes, bool]]:
    """Feed chunks to an editor and return what comes out, and whether it said that it is finished."""

    def feed(editor: Editor, *chunks: bytes) -> tuple[bytes, bool]:
        edits = [editor.feed(chunk) for chunk in chunks] + [editor.feed(b"", end=True)]
        return b"".join(edit.data for edit in edits), edits[-1].finished

    return feed
