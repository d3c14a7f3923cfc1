"""What calls are judged and answered by, as far as it can change while serving."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from extproc.core.classes import Catalog
from extproc.core.reasons import ReplyRules
from extproc.edge.identity import IdentitySource
from extproc.edge.in_flight import UNTOUCHED, AnswerRules
from extproc.edge.responder import Routing
from extproc.edge.wording import Wording


@dataclass(frozen=True, slots=True)
class Terms:
    """One configuration's terms.

    Attributes:
        sources: who is asked who calls.
        catalog: classes, tenants and tasks.
        routing: which pool serves which model.
        reply_rules: how refused calls are answered.
        wording: the words that refused callers read.
        answers: what is done about engines' answers.
    """

    sources: Sequence[IdentitySource]
    catalog: Catalog
    routing: Routing
    reply_rules: ReplyRules
    wording: Wording
    answers: AnswerRules = UNTOUCHED
