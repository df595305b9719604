"""What was measured, as data with a schema, and as tables. Every number of a table is computed from the samples."""

from __future__ import annotations

import json
import platform
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from os import cpu_count
from pathlib import Path
from typing import Any

from ..errors import OptionError
from .bench_measure import Spread, exponent, ratio, spread
from .bench_problems import CASES
from .bench_sizes import Size, spelled

__all__ = [
    "COLUMNS",
    "NOTHING",
    "SCHEMA",
    "Report",
    "Row",
    "cells",
    "growth",
    "lines",
    "machine",
    "of_size",
    "versions",
]

SCHEMA = "attnspec bench 1"
COLUMNS = ("", "CPU", "wall", "CPU ratio", "wall ratio", "memory", "error")
NOTHING = "-"
PAGES = 2**18  # bytes: less than that is lost among the pages that a process has already


@dataclass(frozen=True)
class Row:
    """One subject at one size: seconds of a call in each round, bytes at the peak, the error; or why there are none."""

    case: str
    size: Size
    subject: str
    beside: str
    cpu: tuple[float, ...] = ()
    wall: tuple[float, ...] = ()
    peak: int | None = None
    error: float | None = None
    why: str | None = None


@dataclass(frozen=True)
class Report:
    """A whole run."""

    rows: list[Row]
    absent: list[tuple[str, str]] = field(default_factory=list)
    machine: dict[str, Any] = field(default_factory=dict)
    libraries: dict[str, str] = field(default_factory=dict)
    threads: int = 1
    limited: list[str] = field(default_factory=list)
    rounds: int = 0
    dtype: str = "float32"

    def json(self) -> str:
        """The report as text, a line for each row."""
        data = asdict(self)
        rows = [json.dumps(row | {"size": row["size"]._asdict()}) for row in data.pop("rows")]
        head = json.dumps({"schema": SCHEMA, **data}, indent=1).removesuffix("\n}")
        return f'{head},\n "rows": [\n  {f",{chr(10)}  ".join(rows)}\n ]\n}}\n'

    @classmethod
    def read(cls, text: str) -> Report:
        """The report of such a text. Raises `errors.OptionError` for another schema."""
        data = json.loads(text)
        if data.pop("schema", None) != SCHEMA:
            msg = f"a report of the schema {SCHEMA!r} is needed; measure again with `attnspec bench --json`."
            raise OptionError(msg)
        absent = [(name, why) for name, why in data.pop("absent")]
        return cls([_row(row) for row in data.pop("rows")], absent, **data)

    def cases(self) -> list[str]:
        """The names of the cases that have rows."""
        return list(dict.fromkeys(row.case for row in self.rows))

    def of(self, case: str) -> list[Row]:
        """The rows of a case."""
        return [row for row in self.rows if row.case == case]

    def beside(self, row: Row) -> Row | None:
        """The row that the ratios of this one are taken to, if it was measured."""
        same = (r for r in self.rows if (r.case, r.size, r.subject) == (row.case, row.size, row.beside))
        return next((r for r in same if r.cpu), None)


def _row(data: dict[str, Any]) -> Row:
    return Row(**data | {"size": Size(**data["size"]), "cpu": tuple(data["cpu"]), "wall": tuple(data["wall"])})


def cells(report: Report, row: Row) -> tuple[str, ...]:
    """The row, which was measured, under `COLUMNS`."""
    beside = report.beside(row)
    times = (_seconds(spread(samples).median) for samples in (row.cpu, row.wall))
    ratios = (NOTHING, NOTHING)
    if beside is not None and beside is not row:
        ratios = (_ratio(ratio(row.cpu, beside.cpu)), _ratio(ratio(row.wall, beside.wall)))
    peak = NOTHING if row.peak is None else f"{row.peak / 1e6:.{0 if row.peak > 1e8 else 1}f} MB"
    error = NOTHING if row.error is None else f"{row.error:.0e}"
    return (row.subject, *times, *ratios, peak, error)


def of_size(case: str, size: Size) -> str:
    """The size in a title; imports have none."""
    return "" if CASES[case].what == "import" else f" {spelled(size)}"


def lines(report: Report, case: str) -> dict[str, list[Row]]:
    """For each subject its rows by length, where more than one length was measured and the other axes are alike."""
    rows = [row for row in report.of(case) if row.cpu]
    if not rows:
        return {}
    others = _others(rows[-1].size)
    found: dict[str, list[Row]] = {}
    for row in sorted(rows, key=lambda row: row.size.K):
        if _others(row.size) == others:
            found.setdefault(row.subject, []).append(row)
    return {name: line for name, line in found.items() if len({row.size.K for row in line}) > 1}


def growth(line: Sequence[Row]) -> tuple[float | None, float | None]:
    """b of CPU time = a K^b, and of peak memory, by the medians of a line."""
    lengths = [row.size.K for row in line]
    time = exponent(lengths, [spread(row.cpu).median for row in line])
    peaks = [row.peak for row in line if row.peak is not None]
    told = len(peaks) == len(line) and min(peaks) >= PAGES
    return time, exponent(lengths, peaks) if told else None


def machine() -> dict[str, Any]:
    """The processor and the system."""
    described = Path("/proc/cpuinfo")
    named = [line for line in described.read_text().splitlines() if "model name" in line] if described.exists() else []
    model = named[0].partition(":")[2].strip() if named else platform.processor() or platform.machine()
    return {"cpu": model, "cores": cpu_count(), "system": platform.platform(), "python": platform.python_version()}


def versions(distributions: Iterable[str]) -> dict[str, str]:
    """Those that are installed."""
    found = {}
    for name in sorted(set(distributions)):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _others(size: Size) -> tuple[int, ...]:
    return size.B, size.H, size.G, size.D, size.E, min(size.Q, 2)


def _ratio(found: Spread) -> str:
    return f"{found.median:.2f} ({found.low:.2f}-{found.high:.2f})"


def _seconds(seconds: float) -> str:
    for unit, name in ((1.0, "s"), (1e-3, "ms")):
        if seconds >= unit:
            return f"{seconds / unit:.3g} {name}"
    return f"{seconds * 1e6:.3g} us"
