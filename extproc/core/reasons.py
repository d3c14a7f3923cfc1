"""The closed set of reasons: why a call was admitted, shed or rejected.

Rules this module keeps:

* Every verdict has exactly one reason, and every reason stands here once, with the gate that gives
  it, the reply that a client gets by default, and a sentence for people in English and Chinese.
* The names are part of the interface (metrics, headers, logs): they are added to, never renamed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from types import MappingProxyType


class Reason(StrEnum):
    """Why a verdict was given."""

    ADMITTED = "admitted"
    UNMANAGED = "unmanaged"
    MODE_TRANSACTIONS_ONLY = "mode_transactions_only"
    MODE_PROTECT = "mode_protect"
    BAD_REQUEST = "bad_request"
    BODY_TOO_LARGE = "body_too_large"
    PROMPT_TOO_LONG = "prompt_too_long"
    MERGED = "merged"
    AGENT_FANOUT = "agent_fanout"
    AGENT_DEPTH = "agent_depth"
    AGENT_BUDGET = "agent_budget"
    AGENT_LOOP = "agent_loop"
    AGENT_CYCLE = "agent_cycle"
    DEPENDENCY_UNMET = "dependency_unmet"
    BREAKER_OUTPUT_LENGTH = "breaker_output_length"
    RATE_LIMITED = "rate_limited"
    QUOTA_EXHAUSTED = "quota_exhausted"
    NO_ENDPOINT = "no_endpoint"
    KV_WATERMARK = "kv_watermark"
    KV_DEMAND = "kv_demand"
    PREFILL_BACKLOG = "prefill_backlog"
    CONCURRENCY = "concurrency"
    WAITING = "waiting"
    QUEUE_FULL = "queue_full"
    QUEUE_DEADLINE = "queue_deadline"
    PREDICTED_WAIT = "predicted_wait"
    FLOOD = "flood"
    EVICTED = "evicted"
    ENGINE_REJECTED = "engine_rejected"
    ENGINE_ERROR = "engine_error"
    ENGINE_TIMEOUT = "engine_timeout"
    INTERNAL_ERROR = "internal_error"


class ReplyKind(StrEnum):
    """How a refused call is answered."""

    FALLBACK = "fallback"
    """A friendly, well-formed answer with status 200, for free."""
    ERROR = "error"
    """An error in the endpoint's own shape, which client libraries raise or retry."""


@dataclass(frozen=True, slots=True)
class ReplyStyle:
    """The reply to a refused call.

    Attributes:
        kind: its form.
        status, code: those of the error form; ``code`` is the error's ``type`` on the wire.
        known_as: the error's ``code`` on the wire, where clients know another than the reason.
        lasting: it is of no use to come again soon.
    """

    kind: ReplyKind
    status: int
    code: str
    known_as: str | None = None
    lasting: bool = False


@dataclass(frozen=True, slots=True)
class Entry:
    """What is known of one reason. ``reply`` is None where the call goes on to the engine."""

    gate: str
    reply: ReplyStyle | None
    en: str
    zh: str


def _fallback() -> ReplyStyle:
    return ReplyStyle(ReplyKind.FALLBACK, 503, "overloaded")


def _error(status: int, code: str) -> ReplyStyle:
    return ReplyStyle(ReplyKind.ERROR, status, code)


def _final(status: int, code: str) -> ReplyStyle:
    return ReplyStyle(ReplyKind.ERROR, status, code, lasting=True)


REASONS: Mapping[Reason, Entry] = MappingProxyType(
    {
        Reason.ADMITTED: Entry(
            "all",
            None,
            "Every gate was passed; the call went to the engine.",
            "通过全部关卡，请求已转发。",
        ),
        Reason.UNMANAGED: Entry(
            "none",
            None,
            "No configured pool serves this model or path; the call passed untouched.",
            "没有为该模型或路径配置资源池，请求原样放行。",
        ),
        Reason.MODE_TRANSACTIONS_ONLY: Entry(
            "operator mode",
            _fallback(),
            "Only transactions are served at the moment: an operator has switched to that.",
            "当前处于全站仅保交易模式，仅处理交易类请求。",
        ),
        Reason.MODE_PROTECT: Entry(
            "operator mode",
            _fallback(),
            "An operator has switched to a mode in which this class is turned away.",
            "当前处于保护模式，该等级的请求暂不处理。",
        ),
        Reason.BAD_REQUEST: Entry(
            "request limits",
            _error(400, "invalid_request_error"),
            "The body cannot be read.",
            "请求体无法解析。",
        ),
        Reason.BODY_TOO_LARGE: Entry(
            "request limits",
            _error(413, "request_too_large"),
            "The body is larger than this gateway accepts.",
            "请求体超过网关允许的大小。",
        ),
        Reason.PROMPT_TOO_LONG: Entry(
            "request limits",
            _error(400, "context_length_exceeded"),
            "The prompt is longer than this class or task may send.",
            "提示词超过该等级或任务允许的长度。",
        ),
        Reason.MERGED: Entry(
            "agent run",
            None,
            "An identical call of the same run was under way; this one got its answer.",
            "同一运行中已有相同请求在途，本请求共享其答复。",
        ),
        Reason.AGENT_FANOUT: Entry(
            "agent run",
            _final(429, "agent_limit"),
            "This run has as many sub-agents as it may have. Do the work in those that it has.",
            "该运行的子智能体数量已达上限，请由现有子智能体完成。",
        ),
        Reason.AGENT_DEPTH: Entry(
            "agent run",
            _final(429, "agent_limit"),
            "Sub-agents are nested too deeply. Do the work in the parent.",
            "子智能体嵌套过深，请由上级完成。",
        ),
        Reason.AGENT_BUDGET: Entry(
            "agent run",
            _final(429, "agent_limit"),
            "This run, or this tenant's calls that name no run, have used up what they may. "
            "Finish with what is there, or name the run in x-agent-run-id.",
            "该运行（或该租户未标明运行的请求）的额度已用完，请以现有结果收尾，或用 x-agent-run-id 标明运行。",
        ),
        Reason.AGENT_LOOP: Entry(
            "agent run",
            _final(429, "agent_loop"),
            "The same call was made too often in this run. Its answer will not change: use the one "
            "that was given, or change the request.",
            "该运行重复了相同的请求，结果不会改变；请使用已有答复或修改请求。",
        ),
        Reason.AGENT_CYCLE: Entry(
            "agent run",
            _final(429, "agent_cycle"),
            "Parents or dependencies of this task lead back to itself. Drop one of these links.",
            "该任务的上级或依赖形成了环，请去掉其中一环。",
        ),
        Reason.DEPENDENCY_UNMET: Entry(
            "agent run",
            _final(429, "dependency_unmet"),
            "A task that this one depends on has failed, was turned away or is not done yet. Run "
            "that one first.",
            "该任务依赖的任务失败、被拒绝或尚未完成，请先完成它。",
        ),
        Reason.BREAKER_OUTPUT_LENGTH: Entry(
            "output breaker",
            _fallback(),
            "The outputs of this tenant's task have suddenly become far longer than usual.",
            "该租户此类任务的输出长度突然远超平时。",
        ),
        Reason.RATE_LIMITED: Entry(
            "rate",
            ReplyStyle(ReplyKind.ERROR, 429, "rate_limit_error", "rate_limit_exceeded"),
            "The tenant's requests or tokens per minute are used up.",
            "该租户每分钟的请求数或词元数已用完。",
        ),
        Reason.QUOTA_EXHAUSTED: Entry(
            "quota",
            ReplyStyle(
                ReplyKind.ERROR, 429, "insufficient_quota", "insufficient_quota", lasting=True
            ),
            "The tenant's quota for this period does not cover the call.",
            "该租户本周期的剩余配额不足以支付此次调用。",
        ),
        Reason.NO_ENDPOINT: Entry(
            "capacity",
            _fallback(),
            "No engine endpoint is known for this model.",
            "该模型当前没有可用的推理节点。",
        ),
        Reason.KV_WATERMARK: Entry(
            "capacity",
            _fallback(),
            "Too little KV cache is free for this class.",
            "剩余 KV 缓存低于该等级的水位线。",
        ),
        Reason.KV_DEMAND: Entry(
            "capacity",
            _fallback(),
            "Too little KV cache would be free for this class after what is promised.",
            "计入已承诺的请求后，剩余 KV 缓存低于该等级的水位线。",
        ),
        Reason.PREFILL_BACKLOG: Entry(
            "capacity",
            _fallback(),
            "Too many prompt tokens are waiting to be read before this call.",
            "排在前面的待处理提示词过多。",
        ),
        Reason.CONCURRENCY: Entry(
            "capacity",
            _fallback(),
            "Too many calls are in flight for this class.",
            "在途请求数达到该等级的上限。",
        ),
        Reason.WAITING: Entry(
            "queue",
            None,
            "The call waits for capacity; it is decided later.",
            "请求正在排队等待容量，稍后决定。",
        ),
        Reason.QUEUE_FULL: Entry(
            "queue",
            _fallback(),
            "No place in the queue is left for this class and tenant.",
            "该等级与租户的排队名额已满。",
        ),
        Reason.QUEUE_DEADLINE: Entry(
            "queue",
            _fallback(),
            "No capacity came free within the longest wait of this class.",
            "在该等级的最长排队时间内没有空出容量。",
        ),
        Reason.PREDICTED_WAIT: Entry(
            "queue",
            _fallback(),
            "The wait would be longer than this class may wait.",
            "预计排队时间超过该等级的上限。",
        ),
        Reason.FLOOD: Entry(
            "flood valve",
            _fallback(),
            "More calls of this class came than can be looked at one by one.",
            "该等级的请求过多，无法逐一处理。",
        ),
        Reason.EVICTED: Entry(
            "after admission",
            _fallback(),
            "The call was cut while it was served, so that a higher class had room.",
            "请求在生成过程中被中断，以便为更高等级腾出容量。",
        ),
        Reason.ENGINE_REJECTED: Entry(
            "after admission",
            _fallback(),
            "The engine had no room for the call and sent it back.",
            "推理引擎已满，拒绝了该请求。",
        ),
        Reason.ENGINE_ERROR: Entry(
            "after admission",
            _fallback(),
            "The engine could not be reached, or failed before it answered.",
            "推理引擎无法连接，或在应答前出错。",
        ),
        Reason.ENGINE_TIMEOUT: Entry(
            "after admission",
            ReplyStyle(ReplyKind.FALLBACK, 504, "timeout"),
            "The engine did not answer in time.",
            "推理引擎未能及时应答。",
        ),
        Reason.INTERNAL_ERROR: Entry(
            "no gate",
            _final(500, "server_error"),
            "The gateway failed at this call, which is a fault of its own; it was logged.",
            "网关处理该请求时发生内部错误，已记录日志。",
        ),
    }
)


@dataclass(frozen=True, slots=True)
class ReplyOverride:
    """Another style of reply for refused calls; None selects all, every selector must match."""

    reason: Reason | None
    service_class: str | None
    tenant: str | None
    kind: ReplyKind
    status: int | None


@dataclass(frozen=True, slots=True)
class ReplyRules:
    """How refused calls are answered: the first override that matches, else the reason's default."""

    overrides: tuple[ReplyOverride, ...] = ()

    def style(self, reason: Reason, service_class: str, tenant: str) -> ReplyStyle:
        """Return the style of the reply to a refused call.

        Raises:
            ValueError: the reason does not refuse.
        """
        default = REASONS[reason].reply
        if default is None:
            raise ValueError(f"{reason} refuses nothing")
        for override in self.overrides:
            if (
                override.reason in (None, reason)
                and override.service_class in (None, service_class)
                and override.tenant in (None, tenant)
            ):
                status = override.status or default.status
                return replace(default, kind=override.kind, status=status)
        return default
