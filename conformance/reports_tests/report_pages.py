"""The reports under docs/reports: their scripts run, and the facts written into the pages and the index.

    python conformance/reports_tests/report_pages.py    # anew, for the libraries that are installed

Of a page, the script, its output, the versions and the state are written here; of the index, the table.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "docs" / "reports"
FIXES = Path(__file__).parent / "fixes"
INDEX = FOLDER / "index.md"
NAMES = sorted(path.stem for path in FOLDER.glob("*.py"))
STATES = {0: "fixed", 1: "there"}  # by the exit code of a script


@dataclass(frozen=True)
class Run:
    """What a script printed, less the local labels of versions (+cpu), and its exit code; its complaints if any."""

    output: str
    code: int
    complaints: str


@dataclass(frozen=True)
class Report:
    """A page and the script that stands alone beside it; and the library mended, as far as the script can see."""

    name: str

    @property
    def page(self) -> Path:
        return FOLDER / f"{self.name}.md"

    @property
    def script(self) -> Path:
        return FOLDER / f"{self.name}.py"

    @property
    def fix(self) -> Path:
        return FIXES / f"{self.name}.py"

    def libraries(self) -> list[str]:
        """What the script imports, by root package."""
        nodes = list(ast.walk(ast.parse(self.script.read_text("utf-8"))))
        modules = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
        modules += [str(node.module) for node in nodes if isinstance(node, ast.ImportFrom)]
        return sorted({module.partition(".")[0] for module in modules})

    def missing(self) -> list[str]:
        return [library for library in self.libraries() if find_spec(library) is None]

    def run(self, *, fixed: bool = False) -> Run:
        """The script on a CPU in a process of its own, with the mended library if `fixed`."""
        before = f"runpy.run_path({str(self.fix)!r}); " if fixed else ""
        code = f"import runpy; {before}runpy.run_path({str(self.script)!r}, run_name='__main__')"
        done = subprocess.run(
            [sys.executable, "-c", code],
            env=os.environ | {"JAX_PLATFORMS": "cpu", "KERAS_BACKEND": "numpy"},
            capture_output=True,
            text=True,
            timeout=300,
        )
        return Run(re.sub(r"(\d)\+\w+", r"\1", done.stdout), done.returncode, done.stderr)

    def written(self, run: Run) -> str:
        """The page as it is after a run."""
        text = self.page.read_text("utf-8")
        versions = run.output.partition("\n")[0]
        blocks = {"python": self.script.read_text("utf-8"), "text": run.output}
        for language, content in blocks.items():
            block = f"```{language}\n{content}```"
            text = re.sub(
                rf"^```{language}\n.*?^```", lambda _, block=block: block, text, flags=re.DOTALL | re.MULTILINE
            )
        for fact, value in {"Run with": versions, "State": STATES[run.code]}.items():
            text = re.sub(rf"^\| {fact} \|.*$", f"| {fact} | {value} |", text, flags=re.MULTILINE)
        return text

    def facts(self) -> dict[str, str]:
        """The head of the page: its title and the rows of its table."""
        text = self.page.read_text("utf-8")
        rows = re.findall(r"^\| (Run with|State|Clause|Upstream) \| (.*) \|$", text, re.MULTILINE)
        return {"Title": text.partition("\n")[0].removeprefix("# "), **dict(rows)}


def written_index() -> str:
    """The index as it is with the facts of the pages; new ones come last."""
    text = INDEX.read_text("utf-8")
    listed = re.findall(r"^\| \[.*?\]\((\w+)\.md\)", text, re.MULTILINE)
    rows = []
    for name in sorted(NAMES, key=lambda name: (listed + NAMES).index(name)):
        facts = Report(name).facts()
        link = f"[{facts['Title']}]({name}.md)"
        rows.append(f"| {link} | {facts['Run with']} | {facts['Clause']} | {facts['State']} | {facts['Upstream']} |\n")
    head, marker, rest = text.partition("| --- | --- | --- | --- | --- |\n")
    return head + marker + "".join(rows) + re.sub(r"\A(\|.*\n)*", "", rest)


if __name__ == "__main__":
    for name in NAMES:
        report = Report(name)
        if report.missing():
            print(f"{name}: needs {', '.join(report.missing())}")
            continue
        run = report.run()
        if run.code not in STATES:
            sys.exit(f"{name} broke off:\n{run.complaints}")
        report.page.write_text(report.written(run), "utf-8")
        print(f"{name}: {STATES[run.code]}")
    INDEX.write_text(written_index(), "utf-8")
