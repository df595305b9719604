"""Eight devices in one process, and tests that are asked for by `--attnspec-slow`, as in the suite."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from attnspec_conformance.slow import (
    pytest_addoption as pytest_addoption,
)
from attnspec_conformance.slow import (
    pytest_collection_modifyitems as pytest_collection_modifyitems,
)
from attnspec_conformance.slow import (
    pytest_configure as pytest_configure,
)

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))

# Read when JAX makes its devices, at the first computation. Programs of tests run once: they need not be fast.
os.environ["XLA_FLAGS"] = " ".join(
    (os.environ.get("XLA_FLAGS", ""), "--xla_force_host_platform_device_count=8", "--xla_backend_optimization_level=0")
)
