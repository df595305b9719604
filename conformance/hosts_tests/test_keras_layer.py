"""attnspec's layer for Keras, in a process of its own for each of Keras's backends; the laws are in keras_layer.py."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

LAWS = Path(__file__).parent / "keras_layer.py"


@pytest.mark.parametrize("backend", ["numpy", "torch", "jax"])
def test_the_layer_keeps_its_laws(backend, tmp_path):
    env = os.environ | {"KERAS_BACKEND": backend, "KERAS_HOME": str(tmp_path)}
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(LAWS)],
        env=env, capture_output=True, text=True, check=False, timeout=600,
    )  # fmt: skip
    assert ended.returncode == pytest.ExitCode.OK, ended.stdout + ended.stderr
    assert "skipped" not in ended.stdout or backend == "numpy"


def test_a_backend_without_array_api_arrays_is_refused(tmp_path):
    program = (
        "import keras; keras.backend.backend = lambda: 'tensorflow'\n"
        "from attnspec.integrations.keras_layers import MultiHeadAttention\n"
        "MultiHeadAttention(2, 4)"
    )
    env = os.environ | {"KERAS_BACKEND": "numpy", "KERAS_HOME": str(tmp_path)}
    ended = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, check=False)
    assert "OptionError: Keras runs on 'tensorflow'" in ended.stderr
