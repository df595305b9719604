"""The examples of the documentation run, on eight devices."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[3] / "docs" / "scale" / "jax.md"


def test_the_examples_of_the_page_run() -> None:
    examples = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    assert len(examples) == 3
    names: dict[str, Any] = {"__name__": PAGE.name}
    for example in examples:
        exec(compile(example, PAGE.name, "exec"), names)
