"""Says what was shed and why, over many decisions, and what other thresholds would have done.

Rules this module keeps:

* It reads lines in the order of time and keeps none.
* A call that was refused by the queue wanted a place: the bottleneck is what it did not find then. One
  that others were before did not look; it is what there was last too little of in its pool.
* What another threshold would have done is of the first order; see `extproc.core.replay`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from extproc.core.classes import ServiceClass
from extproc.core.controller import Action
from extproc.core.reasons import REASONS, Reason
from extproc.core.replay import Marks, replay
from extproc.telemetry.lines import Line, past_of

LONG_PROMPT = 4096
"""Tokens from which on a prompt counts as long."""
SHOWN = 10
"""Rows of each table in words."""

_RESOURCES = {
    Reason.KV_WATERMARK: "kv_cache",
    Reason.KV_DEMAND: "kv_cache",
    Reason.CONCURRENCY: "concurrency",
    Reason.PREFILL_BACKLOG: "prefill",
    Reason.NO_ENDPOINT: "endpoints",
}
_BY_GATE = {
    "operator mode": "mode",
    "request limits": "request",
    "agent run": "agents",
    "output breaker": "breaker",
    "rate": "rate",
    "quota": "quota",
    "capacity": "kv_cache",
    "queue": "queue",
    "after admission": "engine",
}
_RESOURCE_ZH = {
    "kv_cache": "KV 缓存",
    "concurrency": "并发",
    "prefill": "提示词处理",
    "endpoints": "推理节点",
    "mode": "运维模式",
    "request": "请求限制",
    "agents": "智能体",
    "breaker": "输出熔断",
    "rate": "速率",
    "quota": "配额",
    "queue": "排队",
    "engine": "推理引擎",
}


@dataclass(frozen=True, slots=True)
class Share:
    """How much of what was refused has one name; ``share`` 0..1 of all refused calls."""

    name: str
    count: int
    share: float
    prompt_tokens: int


@dataclass(frozen=True, slots=True)
class WhatIf:
    """Thresholds of a class to try; None leaves one as it was."""

    service_class: str
    close: float | None = None
    concurrency: float | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """What thresholds would have done to the decisions about their class."""

    what_if: WhatIf
    admitted_instead: int
    refused_instead: int
    same: int


@dataclass(frozen=True, slots=True)
class Summary:
    """What was decided between two moments; tables hold the greatest first."""

    since: float
    until: float
    decisions: int
    admitted: int
    refused: int
    by_reason: tuple[Share, ...]
    by_class: tuple[Share, ...]
    by_tenant: tuple[Share, ...]
    by_task: tuple[Share, ...]
    bottlenecks: tuple[Share, ...]
    long_context_share: float
    what_if: tuple[Outcome, ...]


@dataclass
class _Table:
    counts: Counter[str] = field(default_factory=Counter)
    tokens: Counter[str] = field(default_factory=Counter)

    def add(self, name: str, prompt: int) -> None:
        self.counts[name] += 1
        self.tokens[name] += prompt

    def shares(self, refused: int) -> tuple[Share, ...]:
        return tuple(
            Share(name, count, count / refused, self.tokens[name])
            for name, count in self.counts.most_common()
        )


def summarize(lines: Iterable[Line], what_if: Sequence[WhatIf] = ()) -> Summary:
    """Return what decisions come to; ``lines`` in the order of time."""
    tables = {name: _Table() for name in ("reason", "class", "tenant", "task", "bottleneck")}
    trials = [_Trial(each) for each in what_if]
    short_of: dict[str, Reason] = {}
    since = until = 0.0
    decisions = refused = prompts = long_prompts = 0
    for line in lines:
        since, until = since or line.at, line.at
        decisions += 1
        prompts += line.prompt
        long_prompts += line.prompt if line.prompt >= LONG_PROMPT else 0
        if line.found is not None and line.found.reason is not None:
            short_of[line.pool] = line.found.reason
        if line.verdict in (Action.SHED, Action.REJECT):
            refused += 1
            tables["reason"].add(line.reason.value, line.prompt)
            tables["class"].add(line.service_class, line.prompt)
            tables["tenant"].add(line.tenant, line.prompt)
            tables["task"].add(line.task or "–", line.prompt)
            tables["bottleneck"].add(_bottleneck(line, short_of.get(line.pool)), line.prompt)
        for trial in trials:
            trial.see(line)
    return Summary(
        since=since,
        until=until,
        decisions=decisions,
        admitted=decisions - refused,
        refused=refused,
        by_reason=tables["reason"].shares(refused),
        by_class=tables["class"].shares(refused),
        by_tenant=tables["tenant"].shares(refused),
        by_task=tables["task"].shares(refused),
        bottlenecks=tables["bottleneck"].shares(refused),
        long_context_share=long_prompts / prompts if prompts else 0.0,
        what_if=tuple(trial.outcome() for trial in trials),
    )


def _bottleneck(line: Line, short_of: Reason | None) -> str:
    """Return what a refused call found too little of; ``short_of``: what its pool last lacked."""
    gate = REASONS[line.reason].gate
    wanted = short_of if gate == "queue" and short_of is not None else line.reason
    return _RESOURCES.get(wanted) or _BY_GATE.get(gate, "request")


class _Trial:
    """One set of thresholds that is tried."""

    def __init__(self, what_if: WhatIf) -> None:
        self._what_if = what_if
        self._classes: dict[str, dict[str, ServiceClass]] = {}
        self._marks: dict[str, Marks] = {}
        self._admitted = self._refused = self._same = 0

    def see(self, line: Line) -> None:
        if line.by_envoy:
            return  # nobody judged it by these thresholds
        past = past_of(line)
        given = past.call.classification.service_class
        classes = self._classes.setdefault(line.pool, {})
        rules = self._with(given)
        if classes.get(rules.name) != rules:
            classes[rules.name] = rules
            # Closings so far are forgotten: rules change when an operator does so.
            ranked = sorted(classes.values(), key=lambda each: each.rank)
            self._marks[line.pool] = Marks(
                [replace(each, rank=rank) for rank, each in enumerate(ranked)]
            )
        standing = self._marks[line.pool].standing(past, line.at)
        if given.name != self._what_if.service_class:
            return
        before = past.verdict.action is Action.ADMIT
        after = replay(past, rules, standing).action is Action.ADMIT
        self._admitted += after and not before
        self._refused += before and not after
        self._same += before == after

    def outcome(self) -> Outcome:
        return Outcome(self._what_if, self._admitted, self._refused, self._same)

    def _with(self, given: ServiceClass) -> ServiceClass:
        what_if = self._what_if
        if given.name != what_if.service_class:
            return given
        close = given.close if what_if.close is None else what_if.close
        width = given.open - given.close
        concurrency = given.concurrency if what_if.concurrency is None else what_if.concurrency
        return replace(given, close=close, open=min(1.0, close + width), concurrency=concurrency)


def in_english(summary: Summary) -> str:
    """Return a summary in words."""
    if not summary.decisions:
        return "Nothing was decided."
    seconds = summary.until - summary.since
    counts = f"{summary.admitted} admitted, {summary.refused} refused"
    text = [f"{summary.decisions} decisions in {seconds:.0f} s: {counts}."]
    if summary.refused:
        text.append(f"Bottleneck: {_row(summary.bottlenecks)}.")
        for name, table in (
            ("Why", summary.by_reason),
            ("Class", summary.by_class),
            ("Tenant", summary.by_tenant),
            ("Task", summary.by_task),
        ):
            text.append(f"{name}: {_row(table)}.")
    text.append(
        f"Prompts of {LONG_PROMPT} tokens or more made {summary.long_context_share:.0%} of all prompt "
        "tokens."
    )
    text.extend(
        f"With {_tried(each.what_if)}: {each.admitted_instead} refused calls of the class would have "
        f"been admitted, {each.refused_instead} admitted ones refused, {each.same} decided the same."
        for each in summary.what_if
    )
    if summary.what_if:
        text.append(
            "(Call by call, as things stood then; what more calls would have taken is not counted.)"
        )
    return "\n".join(text)


def in_chinese(summary: Summary) -> str:
    """Return a summary in Chinese words."""
    if not summary.decisions:
        return "这段时间没有判定。"
    seconds = summary.until - summary.since
    counts = f"放行 {summary.admitted}，未放行 {summary.refused}"
    text = [f"{seconds:.0f} 秒内共 {summary.decisions} 次判定：{counts}。"]
    if summary.refused:
        named = tuple(
            replace(each, name=_RESOURCE_ZH.get(each.name, each.name))
            for each in summary.bottlenecks
        )
        text.append(f"瓶颈：{_row(named)}。")
        for name, table in (
            ("原因", summary.by_reason),
            ("等级", summary.by_class),
            ("租户", summary.by_tenant),
            ("任务", summary.by_task),
        ):
            text.append(f"{name}：{_row(table)}。")
    text.append(
        f"{LONG_PROMPT} token 以上的长提示词占全部提示词 token 的 {summary.long_context_share:.0%}。"
    )
    text.extend(
        f"若{_tried(each.what_if)}：该等级有 {each.admitted_instead} 个被拒请求会被放行，"
        f"{each.refused_instead} 个已放行请求会被拒，{each.same} 个不变。"
        for each in summary.what_if
    )
    if summary.what_if:
        text.append("（逐个请求按当时状态推算，未计入多放行请求所占用的容量。）")
    return "\n".join(text)


def _row(shares: Sequence[Share]) -> str:
    shown = [f"{each.name} {each.count} ({each.share:.0%})" for each in shares[:SHOWN]]
    return ", ".join([*shown, "…"] if len(shares) > SHOWN else shown)


def _tried(what_if: WhatIf) -> str:
    parts = []
    if what_if.close is not None:
        parts.append(f"{what_if.service_class} close {what_if.close:g}")
    if what_if.concurrency is not None:
        parts.append(f"{what_if.service_class} concurrency {what_if.concurrency:g}")
    return ", ".join(parts) or what_if.service_class
