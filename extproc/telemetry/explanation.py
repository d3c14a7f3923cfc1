"""Says in words why a call was decided as it was, gate by gate, in English and Chinese."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from extproc.core.controller import Action
from extproc.core.reasons import REASONS, Reason
from extproc.telemetry.lines import Line

GATES = (
    ("operator mode", "Operator mode", "运维模式"),
    ("request limits", "Limits of the request", "请求限制"),
    ("agent run", "Agent run", "智能体运行"),
    ("output breaker", "Output breaker", "输出熔断"),
    ("rate", "Rate", "速率"),
    ("quota", "Quota", "配额"),
    ("capacity", "Capacity", "容量"),
    ("queue", "Queue", "排队"),
    ("after admission", "After admission", "放行之后"),
)
"""The gates in the order in which a call meets them, with their names in English and Chinese."""

_VALVE = ("flood valve", "Flood valve, in Envoy", "防洪阀（Envoy）")
"""Stands before all gates; what it refuses has met none of them."""
_FAULT = ("no gate", "Tidegate itself", "Tidegate 自身")
_ALONE = {gate[0]: gate for gate in (_VALVE, _FAULT)}

_VERDICTS = {
    Action.ADMIT: ("admitted", "已放行"),
    Action.SHED: ("shed", "已降级"),
    Action.REJECT: ("rejected", "已拒绝"),
    Action.WAIT: ("told to wait", "进入排队"),
    Action.MERGE: ("given the answer of an identical call", "已共享相同请求的答复"),
    Action.PASS: ("passed", "原样放行"),
}
_RATIOS = frozenset((Reason.KV_WATERMARK, Reason.KV_DEMAND))
_SECONDS = frozenset((Reason.QUEUE_DEADLINE, Reason.PREDICTED_WAIT))


@dataclass(frozen=True, slots=True)
class Step:
    """One gate as the call met it; ``passed`` None: it did not say yes, and did not decide."""

    gate: str
    passed: bool | None
    en: str
    zh: str


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a call was decided so: the gates, and all of it in words."""

    steps: tuple[Step, ...]
    en: str
    zh: str


def explain(line: Line) -> Explanation:
    """Return why a call was decided so."""
    steps = tuple(_steps(line))
    return Explanation(steps, _english(line, steps), _chinese(line, steps))


def _steps(line: Line) -> list[Step]:
    names = [name for name, _, _ in GATES]
    deciding = REASONS[line.reason].gate
    refused = line.verdict in (Action.SHED, Action.REJECT)
    if line.by_envoy or (refused and deciding in _ALONE):
        return [_refusal(line, *_ALONE.get(deciding, _VALVE))]
    if line.verdict is Action.MERGE:
        entry, (gate, en, zh) = REASONS[line.reason], GATES[names.index(deciding)]
        return [Step(gate, True, f"{en}: {entry.en}", f"{zh}：{entry.zh}")]
    last = names.index(deciding) if refused and deciding in names else len(names) - 2
    return [
        _refusal(line, *gate) if refused and number == last else _passage(line, *gate)
        for number, gate in enumerate(GATES[: last + 1])
    ]


def _refusal(line: Line, gate: str, en: str, zh: str) -> Step:
    entry, (why_en, why_zh) = (
        REASONS[line.reason],
        _against(line.reason, line.value, line.threshold),
    )
    return Step(gate, False, f"{en}: {entry.en}{why_en}", f"{zh}：{entry.zh}{why_zh}")


def _passage(line: Line, gate: str, en: str, zh: str) -> Step:
    """Return a gate that did not refuse the call."""
    found = line.found
    if gate == "queue" and line.waited is not None:
        seconds = f"{line.waited:.3g}"
        return Step(gate, True, f"{en}: waited {seconds} s", f"{zh}：等待 {seconds} 秒")
    if gate == "queue":
        return Step(gate, None, f"{en}: did not wait", f"{zh}：无需排队")
    if gate != "capacity":
        return Step(gate, True, f"{en}: passed", f"{zh}：通过")
    if line.verdict is not Action.ADMIT and line.held_up and found is None:
        return Step(gate, None, f"{en}: others waited before it", f"{zh}：前面已有请求排队")
    if line.verdict is not Action.ADMIT and found is not None and found.reason is not None:
        why_en, why_zh = _against(found.reason, found.value, found.threshold)
        entry = REASONS[found.reason]
        return Step(gate, None, f"{en}: {entry.en}{why_en}", f"{zh}：{entry.zh}{why_zh}")
    return Step(gate, True, f"{en}: {_capacity_en(line)}", f"{zh}：{_capacity_zh(line)}")


def _against(reason: Reason, value: float | None, threshold: float | None) -> tuple[str, str]:
    """Return the number that decided and its limit, in English and Chinese."""
    if value is None or threshold is None:
        return "", ""
    if reason in _RATIOS:
        return (
            f" ({value:.1%} free, {threshold:.1%} needed)",
            f"（剩余 {value:.1%}，需要 {threshold:.1%}）",
        )
    unit_en, unit_zh = (" s", " 秒") if reason in _SECONDS else ("", "")
    return (
        f" ({value:.4g}{unit_en}, limit {threshold:.4g}{unit_en})",
        f"（{value:.4g}{unit_zh}，上限 {threshold:.4g}{unit_zh}）",
    )


def _capacity_en(line: Line) -> str:
    if line.predicted is None:
        return f"nothing is known of the engines' memory; {line.in_flight} in flight"
    left = "" if line.free_after is None else f", {line.free_after:.1%} with this call"
    return (
        f"{line.predicted:.1%} of the KV cache free as predicted{left}; {line.in_flight} in flight"
    )


def _capacity_zh(line: Line) -> str:
    if line.predicted is None:
        return f"推理节点显存未知；在途 {line.in_flight}"
    left = "" if line.free_after is None else f"，计入本请求后 {line.free_after:.1%}"
    return f"预测剩余 KV 缓存 {line.predicted:.1%}{left}；在途 {line.in_flight}"


def _english(line: Line, steps: tuple[Step, ...]) -> str:
    verdict = _VERDICTS[line.verdict][0]
    task = f", task {line.task}" if line.task else ""
    head = (
        f"{_time(line.at)}: a {line.api} call of tenant {line.tenant} (class {line.service_class}{task}) "
        f"to pool {line.pool} was {verdict}: {line.reason}."
    )
    if line.shadow:
        head += " Shadow mode: this was decided, not done; the call passed untouched."
    free = "unknown" if line.free is None else f"{line.free:.1%}"
    predicted = "unknown" if line.predicted is None else f"{line.predicted:.1%}"
    facts = (
        f"Prompt about {line.prompt} tokens, output {_most(line, 'unlimited', 'up to {} tokens')}, "
        f"{line.choices} choice{'s' * (line.choices != 1)}. "
        f"KV cache free {free} observed, {predicted} predicted; {line.in_flight} calls in flight on "
        f"{line.endpoints} endpoint{'s' * (line.endpoints != 1)}. Decided in {line.seconds * 1e6:.0f} µs."
    )
    if line.tightening > 1.0:
        facts += f" Readings were stale: marks were raised to {line.tightening:.2f} times."
    return "\n".join([head, *(f"  {_mark(step)} {step.en}" for step in steps), facts])


def _chinese(line: Line, steps: tuple[Step, ...]) -> str:
    verdict = _VERDICTS[line.verdict][1]
    task = f"，任务 {line.task}" if line.task else ""
    head = (
        f"{_time(line.at)}：租户 {line.tenant}（等级 {line.service_class}{task}）对资源池 {line.pool} 的 "
        f"{line.api} 请求{verdict}：{line.reason}。"
    )
    if line.shadow:
        head += "影子模式：仅作判定，未执行；请求原样放行。"
    free = "未知" if line.free is None else f"{line.free:.1%}"
    predicted = "未知" if line.predicted is None else f"{line.predicted:.1%}"
    facts = (
        f"提示词约 {line.prompt} 个 token，输出{_most(line, '不限', '最多 {} 个 token')}，"
        f"{line.choices} 个候选。KV 缓存剩余：观测 {free}，预测 {predicted}；"
        f"{line.endpoints} 个节点上在途 {line.in_flight}。判定耗时 {line.seconds * 1e6:.0f} 微秒。"
    )
    if line.tightening > 1.0:
        facts += f"指标已过期：水位线提高到 {line.tightening:.2f} 倍。"
    return "\n".join([head, *(f"  {_mark(step)} {step.zh}" for step in steps), facts])


def _most(line: Line, unlimited: str, limited: str) -> str:
    return unlimited if line.max_output is None else limited.format(line.max_output)


def _mark(step: Step) -> str:
    return {True: "✓", False: "✗", None: "–"}[step.passed]


def _time(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
