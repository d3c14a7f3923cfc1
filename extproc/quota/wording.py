"""What a statement says, in English and Chinese."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal

from extproc.core.outcomes import Outcome
from extproc.quota.schema import Kind

Language = Literal["en", "zh"]

KINDS: Mapping[Kind, Mapping[str, str]] = MappingProxyType(
    {
        Kind.OPENING: {
            "en": "Period begins, quota of plan {note}",
            "zh": "周期开始，套餐 {note} 额度",
        },
        Kind.RENEWAL: {
            "en": "Period begins, quota of plan {note}",
            "zh": "周期开始，套餐 {note} 额度",
        },
        Kind.PLAN: {"en": "Plan changed: {note}", "zh": "套餐变更：{note}"},
        Kind.CHARGE: {"en": "Call {exchange}: {outcome}", "zh": "请求 {exchange}：{outcome}"},
        Kind.GRANT: {"en": "Granted: {note}", "zh": "赠送：{note}"},
        Kind.ADJUST: {"en": "Corrected: {note}", "zh": "更正：{note}"},
        Kind.RESET: {"en": "Use made 0, {note}", "zh": "已用额度清零，{note}"},
        Kind.BONUS: {"en": "Bonus, {note}", "zh": "补偿加赠，{note}"},
        Kind.LAPSE: {"en": "Period is over, the rest lapses", "zh": "周期结束，剩余额度失效"},
    }
)

OUTCOMES: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        Outcome.COMPLETED.value: {
            "en": "completed, usage as reported",
            "zh": "已完成，按上报用量计费",
        },
        Outcome.CLIENT_GONE.value: {
            "en": "client left, prompt and what was generated until then",
            "zh": "客户端断开，按提示词与已生成部分计费",
        },
    }
)
ESTIMATED = {"en": " (estimated)", "zh": "（估算）"}

HEADINGS = {
    "en": ("Time", "What", "Tokens", "Left"),
    "zh": ("时间", "说明", "变动（Token）", "剩余"),
}
BALANCE = {
    "en": ("Tenant", "Plan", "Period", "Total", "Used", "Held for calls under way", "Left"),
    "zh": ("租户", "套餐", "周期", "总额", "已用", "在途预占", "剩余"),
}
NOT_CHARGED = {
    "en": "Calls that were shed, cut, refused by the engine or failed cost nothing and are not listed.",
    "zh": "被限流、中断、被引擎拒绝或失败的请求不计费，未列出。",
}


def explain(
    kind: Kind, language: Language, *, exchange: str, outcome: str, estimated: bool, note: str
) -> str:
    """Return what a transaction was for."""
    how = OUTCOMES.get(outcome, {}).get(language, outcome)
    if estimated:
        how += ESTIMATED[language]
    return KINDS[kind][language].format(exchange=exchange, outcome=how, note=note or "–")
