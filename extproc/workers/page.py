"""The metrics pages of several workers as one.

Rules this module keeps:

* Nothing is added up: each sample gets the label ``worker``, as it has ``instance`` from Prometheus. What
  is a sum and what a maximum is known where it is asked.
* Each family is told once, with the samples of all; no sample is read further than its name.
"""

from __future__ import annotations

from collections.abc import Mapping


def merged(pages: Mapping[int, str]) -> str:
    """Return one page of the workers' pages, in Prometheus' text format, by their numbers."""
    heads: dict[str, list[str]] = {}
    samples: dict[str, list[str]] = {}
    for worker, page in pages.items():
        family = ""
        for line in page.splitlines():
            if line.startswith("# "):
                family = line.split(" ", 3)[2]
                head = heads.setdefault(family, [])
                if len(head) < _HEAD_LINES and line not in head:
                    head.append(line)
            elif line:
                samples.setdefault(family, []).append(_labelled(line, worker))
    lines = [each for family, head in heads.items() for each in (*head, *samples.get(family, ()))]
    return "".join(f"{line}\n" for line in lines)


_HEAD_LINES = 2
"""HELP and TYPE."""


def _labelled(sample: str, worker: int) -> str:
    """Return a sample with the label; a name holds neither blanks nor braces."""
    name, brace, rest = sample.partition("{")
    if brace and " " not in name:
        return f'{name}{{worker="{worker}",{rest}'
    name, _, value = sample.partition(" ")
    return f'{name}{{worker="{worker}"}} {value}'
