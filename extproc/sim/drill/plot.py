"""A picture of an experiment: goodput and the highest class in time, by load and controller."""

from __future__ import annotations

from pathlib import Path

from extproc.sim.drill.confidence import mean
from extproc.sim.drill.experiment import Experiment


class NoPlottingError(Exception):
    """The plotting library is not installed; the text says how to get it."""


def plot(experiment: Experiment, file: Path) -> None:
    """Draw the steady cells into a PNG or SVG file, by its suffix.

    Raises:
        NoPlottingError: matplotlib is not installed.
        ValueError: the suffix names no format that it can write.
        OSError: the file cannot be written.
    """
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ImportError as error:
        raise NoPlottingError("plots need matplotlib: pip install 'tidegate[drill]'") from error
    cells = [cell for cell in experiment.results if cell.shape == "steady" and cell.fault == "none"]
    mixes = list(dict.fromkeys(cell.mix for cell in cells))
    highest = next(iter(experiment.setting.config.classes))
    panels = (
        ("goodput", "weighted goodput per second"),
        (f"in_time_{highest}", f"{highest} in time"),
    )
    # Without a salt of its own, an SVG's names would differ from run to run.
    with mpl.rc_context({"svg.hashsalt": "tidegate", "font.size": 9}):
        figure = Figure(figsize=(4.2 * len(panels), 3.2 * max(1, len(mixes))), layout="constrained")
        axes = figure.subplots(max(1, len(mixes)), len(panels), squeeze=False)
        for mix, row in zip(mixes, axes, strict=False):
            for (score, label), axis in zip(panels, row, strict=True):
                for controller in dict.fromkeys(cell.controller for cell in cells):
                    chosen = sorted(
                        (c for c in cells if c.mix == mix and c.controller == controller),
                        key=lambda cell: cell.load,
                    )
                    means = [mean(experiment.values(cell, score)) for cell in chosen]
                    axis.errorbar(
                        [cell.load for cell in chosen],
                        [each.value for each in means],
                        [0.0 if each.half != each.half else each.half for each in means],
                        marker="o",
                        markersize=3,
                        capsize=2,
                        label=controller,
                    )
                axis.set(title=f"{mix}: {label}", xlabel="load", ylim=(0.0, None))
                axis.grid(alpha=0.3)
        if len(cells):
            axes[0][0].legend()
        svg = file.suffix.lower() == ".svg"
        figure.savefig(file, dpi=120, metadata={"Date": None} if svg else {"Software": None})
