"""The live line of the stand: who was admitted and shed, read from Tidegate's own metrics."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from prometheus_client.parser import text_string_to_metric_families


@dataclass(frozen=True, slots=True)
class Tally:
    """Counts since the start, and the state of the pool now."""

    admitted: Counter[str] = field(default_factory=Counter)
    shed: Counter[str] = field(default_factory=Counter)
    rejected: Counter[str] = field(default_factory=Counter)
    in_flight: int = 0
    free: float | None = None

    def line(self, classes: tuple[str, ...]) -> str:
        """Return one line for people; with three classes it fits into 80 columns."""
        counts = []
        for name in classes:
            count = f"{name} {self.admitted[name]}/{self.shed[name]}"
            rejected = self.rejected[name]
            counts.append(f"{count} ({rejected} rejected)" if rejected else count)
        free = "?" if self.free is None else f"{self.free:.0%}"
        return " | ".join(
            [f"admitted/shed {' '.join(counts)}", f"in flight {self.in_flight}", f"KV free {free}"]
        )


def read_tally(page: str) -> Tally:
    """Return the tally that a metrics page tells; pools are added up, the fullest one's free ratio."""
    verdicts: dict[str, Counter[str]] = {"admit": Counter(), "shed": Counter(), "reject": Counter()}
    in_flight = 0
    free: list[float] = []
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            if sample.name == "tidegate_decisions_total":
                verdicts[sample.labels["verdict"]][sample.labels["class"]] += int(sample.value)
            elif sample.name == "tidegate_in_flight":
                in_flight += int(sample.value)
            elif sample.name == "tidegate_free_ratio_observed":
                free.append(sample.value)
    return Tally(
        verdicts["admit"], verdicts["shed"], verdicts["reject"], in_flight, min(free, default=None)
    )
