"""Cost against the length of the sequence, for every subject: time above, memory below, both logarithmic."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..errors import OptionError
from ..plot_picture import Picture, blank, style
from .bench_measure import spread
from .bench_report import Report, Row, growth, lines

__all__ = ["draw"]

# Told from each other by all kinds of sight, on light and on dark (Okabe, Ito, "Color universal design", 2008).
COLOURS = ("#1f83c4", "#d55e00", "#009e73", "#cc79a7", "#9a7d0a", "#7f7f7f", "#8c564b", "#6a5acd")
KINDS = {"attnspec": ("-", "o"), "naive": ("--", "s"), "limit": (":", "v")}
OTHER = ("-.", "D")
WIDTH, HEIGHT = 5.6, 2.8  # inches of a panel


def draw(report: Report, cases: Sequence[str] | None = None, subjects: Sequence[str] | None = None) -> Picture:
    """A column for each case that has two lengths or more; only those cases and subjects, if they are given.

    Raises
    ------
    errors.OptionError
        If no case has two lengths.
    errors.MissingModelError
        Without matplotlib.
    """
    chosen = {case: _chosen(lines(report, case), subjects) for case in report.cases() if cases is None or case in cases}
    drawn = {case: found for case, found in chosen.items() if found}
    if not drawn:
        msg = "a picture needs two lengths of one case, e.g. --shapes 1x8x512x64,1x8x1024x64."
        raise OptionError(msg)
    names = list(dict.fromkeys(name for found in drawn.values() for name in found))
    colours = {name: COLOURS[n % len(COLOURS)] for n, name in enumerate(names)}
    with_memory = any(row.peak for found in drawn.values() for line in found.values() for row in line)
    with style():
        rows = 2 if with_memory else 1
        figure, axes = blank(WIDTH * len(drawn), HEIGHT * rows, rows, len(drawn))
        for n, (case, found) in enumerate(drawn.items()):
            _panel(axes[n], case, found, colours, of_memory=False)
            if with_memory:
                _panel(axes[n + len(drawn)], case, found, colours, of_memory=True)
        axes[0].set_ylabel("CPU time, ms")
        if with_memory:
            axes[len(drawn)].set_ylabel("peak memory, MB")
        for last in axes[-len(drawn) :]:
            last.set_xlabel("length of the sequence")
    return Picture(figure, f"Cost against length, {', '.join(drawn)}: {', '.join(names)}")


def _chosen(found: dict[str, list[Row]], subjects: Sequence[str] | None) -> dict[str, list[Row]]:
    return {name: line for name, line in found.items() if subjects is None or name in subjects}


def _panel(axes: Any, case: str, found: dict[str, list[Row]], colours: dict[str, str], *, of_memory: bool) -> None:
    for name, line in found.items():
        grown = growth(line)[of_memory]
        points = [(row.size.K, _cost(row, of_memory)) for row in line if not of_memory or row.peak]
        if not points:
            continue
        dashes, marker = KINDS.get(name.partition(" ")[0], OTHER)
        label = name if grown is None else f"{name}, n^{grown:.1f}"
        axes.loglog(
            *zip(*points, strict=True), linestyle=dashes, marker=marker, markersize=4, linewidth=1.6,
            color=colours[name], label=label,
        )  # fmt: skip
    from matplotlib.ticker import FuncFormatter, LogLocator

    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda cost, _: f"{cost:g}"))
    lengths = sorted({row.size.K for line in found.values() for row in line})
    axes.set_xticks(lengths, [str(n) for n in lengths])
    axes.minorticks_off()
    axes.set_title(case)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(
        frameon=False, fontsize=7, labelcolor="linecolor", handlelength=3, loc="upper left", bbox_to_anchor=(1, 1)
    )


def _cost(row: Row, of_memory: bool) -> float:
    return (row.peak or 0) / 1e6 if of_memory else 1e3 * spread(row.cpu).median
