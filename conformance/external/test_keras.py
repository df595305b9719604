"""Keras's own tests of attention, passed with attention by attnspec.

On JAX those that compile quickly; ATTNSPEC_KERAS=whole takes them all, as on NumPy and PyTorch.
"""

from __future__ import annotations

import os

import keras_tests
import pytest

WHOLE = os.environ.get("ATTNSPEC_KERAS") == "whole"
# PyTorch's backend takes no mask together with a bias: Keras skips those.
OF_NUMBERS = {"numpy": 24, "torch": 20, "jax": 24}


@pytest.mark.parametrize("backend", keras_tests.BACKENDS)
def test_what_passes_with_keras_attention_passes_with_attnspec(backend, tmp_path):
    select = keras_tests.WHOLE if WHOLE or backend != "jax" else keras_tests.QUICK
    own, ours = (keras_tests.run(backend, mode, select, tmp_path) for mode in ("own", "attnspec"))
    assert own.failed == ours.failed == frozenset()
    assert own.passed == ours.passed
    assert own.calls == ours.calls
    of_numbers = {name for name in ours.passed if name.startswith("NNOpsCorrectnessTest")}
    assert len(of_numbers) == OF_NUMBERS[backend]
    assert of_numbers < ours.calls.keys()


def test_a_wrong_sign_fails_the_tests_of_numbers(tmp_path):
    wrong = keras_tests.run("numpy", "wrong sign", "dot_product_attention and Correctness", tmp_path)
    assert len(wrong.failed) > 0.9 * OF_NUMBERS["numpy"]
