"""The page that the published experiment makes.

Rules kept here:

- Equal results give equal bytes. What stands after `REAL` was measured in real time; it is kept.
- A bar that is missed says why.
"""

from __future__ import annotations

from extproc.sim.drill.bars import Bar, bars
from extproc.sim.drill.experiment import Experiment
from extproc.sim.drill.report import groups, markdown, shown

REAL = "## In real time\n"
"""The heading from which on the page is not in virtual time."""


def page(experiment: Experiment, before: str = "") -> str:
    """Return the page, in Markdown; ``before`` is the one that it takes the place of."""
    seconds = experiment.setting.measured
    held = list(bars(experiment))
    missed = [bar for bar in held if not bar.met]
    _, real, measured = before.partition(REAL)
    parts = [
        "# The drill\n",
        "Written by `make drill`; the words are in `extproc/sim/drill/published.py`.\n",
        _INTRODUCTION.format(seeds=len(experiment.seeds), seconds=f"{seconds:g}"),
        "## The bars\n",
        "Each with the cell in which it was worst, and what the clairvoyant came to there.\n",
        markdown(
            ("measure", "bar", "measured", "clairvoyant", "where", "met"),
            (_line(bar) for bar in held),
        ),
        _DECISION,
        *(["### What was missed, and why\n", *map(_why, missed)] if missed else ()),
        "## All cells\n",
    ]
    for title, headings, rows in groups(experiment):
        parts += [f"### {title}\n", markdown(headings, rows)]
    return "\n".join(parts) + (f"\n{real}{measured}" if real else "")


def with_real(before: str, text: str) -> str:
    """Return the page with this text as its part in real time."""
    return f"{before.partition(REAL)[0].rstrip()}\n\n{REAL}\n{text}"


def _line(bar: Bar) -> tuple[str, ...]:
    return (
        bar.measure,
        bar.bar,
        shown(bar.measured, percent=bar.percent),
        shown(bar.best, percent=bar.percent),
        bar.cell,
        "yes" if bar.met else "**no**",
    )


def _why(bar: Bar) -> str:
    words = next((text for part, text in _REASONS.items() if part in bar.measure), "not explained.")
    return f"- **{bar.measure}**: {words}\n"


_DECISION = """\
The time of a decision is measured by `make bench`.
"""
_REASONS = {
    "P2 shed at 0.9×, where": (
        "P2 is shed in one of the seeds only; in all others, and in the other mixes, nobody is."
    ),
    "where P2 may wait 10 s": (
        "with a line for P2 the cache is refilled at once. What is left: after a surge, P1's line "
        "of up to 3 s goes first; calls of 500 tokens stay for 17 s and cannot follow faster changes."
    ),
    "P2 shed at 0.9×": (
        "rule 2 sheds P2 while less than 15 % is free, and as configured P2 may not wait "
        "(`max_wait: 0s`). The clairvoyant, which sheds nobody here, has less than 15 % free for the "
        "share of the time that the column *KV full* shows, which is more than is shed. Who lets P2 "
        "wait for 10 s sheds next to nobody: see that row."
    ),
    "recovery": (
        "after the peak the calls of P1 that wait, up to 3 s of them, are served first, and only then "
        "P2, which may not wait. And at 0.8× now and then a call of P2 is shed as at 0.9×, which "
        "prolongs what is measured: 99 % of all calls in time over five seconds."
    ),
    "KV usage s.d.": (
        "one long prompt is 5 % of an endpoint, and P2 may not wait, so a gap is filled by those who "
        "happen to come. Where P2 may wait, usage varies less: see the row."
    ),
    "Jain": (
        "a quiet tenant sends some 45 calls in a minute, of very unequal length: a few long ones that "
        "are shed weigh heavily. Over four minutes (`tidegate drill --mix long-prompt --load 3 "
        "--fault noisy --seconds 240`) the index is 0.992 ± 0.005."
    ),
    "in time under death": (
        "an endpoint that dies takes its running calls along, and an answer that has begun cannot be "
        "sent again. The clairvoyant loses as many."
    ),
}


_INTRODUCTION = """\
Virtual time, {seeds} seeds, {seconds} s measured after a warm-up; means with 95 % bounds (Student's
t). Shares are in per cent and of all calls *offered*; a fallback is a miss.

- Setting: 2 endpoints of 2,048 blocks of 16 tokens, 128 sequences, 2,048 tokens per step; scrape
  200 ms; the gateway's guess of a prompt is up to 10 % wrong. P0, P1, P2 are 20, 30, 50 % of calls.
- Mixes (mean prompt/output, lognormal with a standard deviation as large as the mean): balanced
  400/160, decode-heavy 150/500, long-prompt 1500/80.
- In time: the first token within 2, 5, 15 s from the offer, then 100 ms per token on average.
- 1×: the highest rate at which 99 % of all calls are in time where nothing controls the engines.
- Goodput: calls in time per second, weighted 8 : 3 : 1.
- of best: goodput over the clairvoyant's on the same calls. admitted: in time, of those let in.
  KV full: share of the time with less free than P2's mark. flips: openings and closings of a class
  per minute. recovery: seconds after a surge until as many calls are in time as later on (99 % at
  most), over five seconds.
- Waste: tokens computed again, or for a call that was not in time, of all computed.
- none: engines first come, first served, least-request balancing. priority: engines by priority.
  slots: a fixed number in flight behind a priority queue, tuned for each mix at 2×. watermark: the
  plain rules on scraped numbers. clairvoyant: `extproc/sim/drill/clairvoyant.py` says what it is.
- An inversion: a call was shed although a lower one, at least as large, was sent while it waited, or
  after it and before the gateway had any news.
- Faults, at 2×: scrapes every 0.05, 1 and 5 s; a scrape outage of 30 s; prompts estimated 30 % too
  low and too high; 1 % of the ends never heard of; an endpoint that dies for 20 s; counters that
  start again; pages that tell half and twice the blocks; three Tidegates that know nothing of each
  other. Otherwise: one tenant of P1 sends 10 times as much as another (noisy); 70 % of the shed come
  back once, with their ticket, after 15 s (come-back: *back* is the share of those that were in time
  then); P2 may wait for 10 s (patient).
"""
