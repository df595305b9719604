"""The examples of the documentation run, one after the other in a folder of their own."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import dask
import pytest

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("page", ["docs/scale/dask.md", "backends/dask/README.md"])
def test_the_examples_of_the_page_run(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    examples = re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(), re.DOTALL | re.MULTILINE)
    assert examples
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": page}
    with dask.config.set(scheduler="threads"):
        for example in examples:
            exec(compile(example, page, "exec"), names)
