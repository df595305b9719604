"""ERROR: every refusal has its type, its numbers and a way out, and comes before any work."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import attnspec
from attnspec import registry
from attnspec.backend import choose
from attnspec.errors import (
    AttnspecError,
    DeviceError,
    DTypeError,
    MaskError,
    OptionError,
    ShapeError,
    UnknownBackendError,
)

from .problems import normal

FUNCTIONS = (attnspec.attention, attnspec.attention_with_lse)


def qkv(backend: Any, dtype: str | None = None) -> list[Any]:
    """q (2, 4, 5, 3), k (2, 2, 7, 3), v (2, 2, 7, 6)."""
    shapes = ((2, 4, 5, 3), (2, 2, 7, 3), (2, 2, 7, 6))
    return [backend.asarray(normal(n, *shape), dtype=dtype) for n, shape in enumerate(shapes)]


def refuse(error: type[AttnspecError], words: tuple[str, ...], call: Callable[[], Any]) -> None:
    """The call raises exactly this type, with all the words in its text, none of them as a part of another."""
    with pytest.raises(AttnspecError) as caught:
        call()
    assert type(caught.value) is error
    assert isinstance(caught.value, ValueError | TypeError | ImportError)
    text = str(caught.value)
    for word in words:
        assert re.search(rf"(?<!\w){re.escape(word)}(?!\w)", text), f"{word!r} in {text!r}"


SHAPES = {
    "width": ((2, 4, 5, 3), (2, 2, 7, 8), (2, 2, 7, 6), ("D=3", "D=8")),
    "longer v": ((2, 4, 5, 3), (2, 2, 7, 3), (2, 2, 9, 6), ("K=7", "K=9")),
    "longer k": ((2, 4, 5, 3), (2, 2, 9, 3), (2, 2, 7, 6), ("K=9", "K=7")),
    "heads of v": ((2, 4, 5, 3), (2, 2, 7, 3), (2, 4, 7, 6), ("G=2", "G=4")),
    "heads of q": ((2, 5, 5, 3), (2, 2, 7, 3), (2, 2, 7, 6), ("H=5", "G=2")),
    "batch": ((2, 4, 5, 3), (3, 2, 7, 3), (3, 2, 7, 6), ("(2,)", "(3,)")),
    "rank": ((3,), (7, 3), (7, 6), ("(3,)",)),
    "no key heads": ((2, 4, 5, 3), (2, 0, 7, 3), (2, 0, 7, 6), ("H=4", "G=0")),
}


@pytest.mark.clause("SHAPE-1", "ERROR-1")
@pytest.mark.parametrize("name", SHAPES)
def test_shapes_that_do_not_fit(backend: Any, name: str) -> None:
    *shapes, words = SHAPES[name]
    arrays = [backend.asarray(np.zeros(shape, np.float32)) for shape in shapes]
    for function in FUNCTIONS:
        refuse(ShapeError, words, lambda function=function: function(*arrays))  # type: ignore[misc]


@pytest.mark.clause("SHAPE-3", "ERROR-1")
@pytest.mark.parametrize("dtype", ["int32", "bool", "complex64"])
def test_dtypes_that_are_not_floating(backend: Any, dtype: str) -> None:
    for n, name in enumerate("qkv"):
        arrays = qkv(backend)
        arrays[n] = backend.asarray(np.ones(arrays[n].shape, dtype))
        refuse(DTypeError, (name, dtype), lambda arrays=arrays: attnspec.attention(*arrays))  # type: ignore[misc]
    every = [backend.asarray(np.ones(x.shape, dtype)) for x in qkv(backend)]
    refuse(DTypeError, (dtype,), lambda: attnspec.attention(*every))


@pytest.mark.clause("SHAPE-3", "ERROR-1")
@pytest.mark.needs("float64")
def test_dtypes_that_differ(backend: Any) -> None:
    q, k, _ = qkv(backend)
    v = qkv(backend, "float64")[2]
    refuse(DTypeError, ("float32", "float64"), lambda: attnspec.attention(q, k, v))


@pytest.mark.clause("SHAPE-1", "ERROR-1")
def test_what_is_no_array(backend: Any) -> None:
    q, k, v = qkv(backend)
    refuse(DTypeError, ("k", "list"), lambda: attnspec.attention(q, [[1.0]], v))
    refuse(DTypeError, ("v", "NoneType"), lambda: attnspec.attention(q, k, None))


OTHERS = ("strict", "numpy")


def is_other(module: Any, backend: Any) -> bool:
    """A backend that loads and wraps another framework."""
    return not isinstance(module, Exception) and module.xp is not backend.xp


@pytest.fixture
def foreign(backend: Any) -> Callable[[Any], Any]:
    """An array as another framework's."""
    loaded = (registry.status(name) for name in OTHERS if name in registry.registered())
    other: Any = next((module for module in loaded if is_other(module, backend)), None)
    if other is None:
        pytest.skip("no second framework is installed")
    return lambda x: other.asarray(backend.to_numpy(x))


@pytest.mark.clause("SHAPE-1", "ERROR-1")
def test_arrays_of_two_frameworks(backend: Any, foreign: Callable[[Any], Any]) -> None:
    q, k, v = qkv(backend)
    refuse(DeviceError, (), lambda: attnspec.attention(q, k, foreign(v)))
    refuse(DeviceError, (), lambda: attnspec.attention(q, k, v, mask=foreign(backend.asarray(np.ones((5, 7), bool)))))


@pytest.mark.clause("NORM-1", "ERROR-1")
def test_norms_over_two_frameworks(backend: Any, foreign: Callable[[Any], Any]) -> None:
    x, ones = backend.asarray(normal(1, 2, 5)), backend.asarray(np.ones(5, np.float32))
    refuse(DeviceError, (), lambda: attnspec.layer_norm(x, foreign(ones)))
    refuse(DeviceError, (), lambda: attnspec.layer_norm(x, ones, foreign(ones)))
    refuse(DeviceError, (), lambda: attnspec.rms_norm(x, foreign(ones)))


@pytest.mark.clause("SOFTMAX-5", "ERROR-1")
def test_parts_of_two_frameworks(backend: Any, foreign: Callable[[Any], Any]) -> None:
    out, lse = attnspec.attention_with_lse(*qkv(backend))
    refuse(DeviceError, (), lambda: attnspec.merge_attention([(out, foreign(lse))]))
    refuse(DeviceError, (), lambda: attnspec.merge_attention([(out, lse), (foreign(out), lse)]))
    refuse(DeviceError, (), lambda: attnspec.merge_attention([(out, lse), (foreign(out), foreign(lse))]))


@pytest.mark.clause("SHAPE-1", "ERROR-1")
@pytest.mark.needs("second_device")
def test_arrays_of_two_devices(backend: Any) -> None:
    first, *_, second = backend.devices()
    q, k, v = (backend.asarray(normal(n, 2, 5, 3), device=first) for n in range(3))
    far = backend.asarray(normal(2, 2, 5, 3), device=second)
    refuse(DeviceError, ("v on",), lambda: attnspec.attention(q, k, far))
    seen = backend.asarray(np.ones((5, 5), bool), device=second)
    refuse(DeviceError, ("mask", str(second)), lambda: attnspec.attention(q, k, v, mask=seen))


OPTIONS = {
    "scale": (float("nan"), float("inf"), -float("inf")),
    "softcap": (0.0, -1.0, float("nan"), float("inf")),
}


@pytest.mark.clause("SCORE-1", "SCORE-4", "ERROR-1")
@pytest.mark.parametrize(("name", "value"), [(n, v) for n, values in OPTIONS.items() for v in values])
def test_numbers_out_of_range(backend: Any, name: str, value: float) -> None:
    q, k, v = qkv(backend)
    for function in FUNCTIONS:
        refuse(
            OptionError,
            (name, repr(value)),
            lambda function=function: function(q, k, v, **{name: value}),  # type: ignore[misc]
        )
    refuse(OptionError, (name, repr(value)), lambda: attnspec.attention_weights(q, k, **{name: value}))


@pytest.mark.clause("SCORE-1", "SCORE-4", "ERROR-1")
@pytest.mark.parametrize("name", ["scale", "softcap"])
def test_options_that_are_no_numbers(backend: Any, name: str) -> None:
    q, k, v = qkv(backend)
    for value in ("1", True, 1j, backend.asarray(np.ones(2, np.float32))):
        refuse(DTypeError, (name,), lambda value=value: attnspec.attention(q, k, v, **{name: value}))  # type: ignore[misc]


@pytest.mark.clause("SCORE-5", "ERROR-1")
def test_a_bias_that_is_boolean_or_does_not_fit(backend: Any) -> None:
    q, k, v = qkv(backend)
    for dtype in ("bool", "int32"):
        bias = backend.asarray(np.ones((5, 7), dtype))
        refuse(DTypeError, ("bias", dtype), lambda bias=bias: attnspec.attention(q, k, v, bias=bias))  # type: ignore[misc]
    for shape in ((6,), (5, 8), (3, 5, 7), (3, 4, 5, 7), (1, 2, 4, 5, 7)):
        bias = backend.asarray(np.ones(shape, np.float32))
        refuse(
            ShapeError,
            (str(shape), str((2, 4, 5, 7))),
            lambda bias=bias: attnspec.attention(q, k, v, bias=bias),  # type: ignore[misc]
        )


@pytest.mark.clause("SOFTMAX-2", "ERROR-1")
def test_a_sink_that_does_not_fit(backend: Any) -> None:
    q, k, v = qkv(backend)
    wide = backend.asarray(np.ones(5, np.float32))
    refuse(ShapeError, ("(5,)", "4"), lambda: attnspec.attention(q, k, v, sink=wide))
    whole = backend.asarray(np.ones(4, np.int32))
    refuse(DTypeError, ("sink", "int32"), lambda: attnspec.attention(q, k, v, sink=whole))


@pytest.mark.clause("MASK-1", "ERROR-1")
@pytest.mark.parametrize("dtype", ["int32", "float32", "uint8"])
def test_a_mask_that_is_not_boolean(backend: Any, dtype: str) -> None:
    q, k, v = qkv(backend)
    mask = backend.asarray(np.ones((5, 7), dtype))
    for call in (
        lambda: attnspec.attention(q, k, v, mask=mask),
        lambda: attnspec.attention_weights(q, k, mask=mask),
        lambda: attnspec.attention(q, k, v, mask=attnspec.causal() & mask),
    ):
        refuse(MaskError, (dtype, "mask != 0", "bias="), call)
    refuse(MaskError, ("list",), lambda: attnspec.attention(q, k, v, mask=[[True]]))


@pytest.mark.clause("MASK-2", "ERROR-1")
@pytest.mark.parametrize("shape", [(6,), (5, 6), (4, 7), (3, 5, 7), (3, 4, 5, 7), (1, 2, 4, 5, 7)])
def test_a_mask_that_does_not_broadcast(backend: Any, shape: tuple[int, ...]) -> None:
    q, k, v = qkv(backend)
    mask = backend.asarray(np.ones(shape, bool))
    refuse(ShapeError, ("mask", str(shape), str((2, 4, 5, 7))), lambda: attnspec.attention(q, k, v, mask=mask))


@pytest.mark.clause("MASK-2", "ERROR-1")
def test_a_mask_whose_first_axis_is_the_batch_is_told_where_heads_go(backend: Any) -> None:
    q, k, v = qkv(backend)
    mask = backend.asarray(np.ones((2, 5, 7), bool))
    refuse(ShapeError, ("(2, 5, 7)", "(2, 1, 5, 7)"), lambda: attnspec.attention(q, k, v, mask=mask))


@pytest.mark.clause("MASK-4", "ERROR-1")
def test_rules_that_mean_nothing(backend: Any) -> None:
    q, k, v = qkv(backend)
    refuse(OptionError, ("left", "-1"), lambda: attnspec.window(-1, 0))
    refuse(OptionError, ("right", "1.5"), lambda: attnspec.window(0, 1.5))  # type: ignore[arg-type]
    refuse(OptionError, ("align", "middle"), lambda: attnspec.causal(align="middle"))  # type: ignore[arg-type]
    refuse(DTypeError, ("offset", "float32"), lambda: attnspec.causal(backend.asarray(np.ones(2, np.float32))))
    refuse(DTypeError, ("offset", "2.5"), lambda: attnspec.window(1, 1, offset=2.5))
    refuse(DTypeError, ("lengths", "2.5"), lambda: attnspec.padding(2.5))
    floats = backend.asarray(np.ones(5, np.float32))
    three, five, six, seven = (backend.asarray(np.ones(n, np.int32)) for n in (3, 5, 6, 7))
    refuse(DTypeError, ("q_ids", "float32"), lambda: attnspec.segments(floats))
    refuse(DTypeError, ("k_ids", "float32"), lambda: attnspec.segments(five, floats))
    for words, rule in (
        (("lengths", "(3,)"), attnspec.padding(three)),
        (("offset", "(3,)"), attnspec.causal(three)),
        (("q_ids", "(6,)"), attnspec.segments(six, seven)),
        (("k_ids", "(6,)"), attnspec.segments(five, six)),
        (("lengths", "(3,)"), ~(attnspec.causal() & attnspec.padding(three))),
        (("lengths", "(3,)"), attnspec.padding(three) | attnspec.causal()),
    ):
        refuse(ShapeError, words, lambda rule=rule: attnspec.attention(q, k, v, mask=rule))  # type: ignore[misc]


@pytest.mark.clause("DROPOUT-1", "ERROR-1")
def test_dropout_without_a_key(backend: Any) -> None:
    q, k, v = qkv(backend)
    refuse(DTypeError, ("dropout", "float"), lambda: attnspec.attention(q, k, v, dropout=0.1))  # type: ignore[arg-type]
    refuse(
        DTypeError,
        ("rng", "int"),
        lambda: attnspec.attention(q, k, v, dropout=attnspec.Dropout(0.1, 3)),  # type: ignore[arg-type]
    )
    refuse(DTypeError, ("rng", "int"), lambda: attnspec.dropout(q, 0.1, 3))  # type: ignore[arg-type]


@pytest.mark.clause("PATH-1", "ERROR-1")
def test_an_implementation_that_does_not_exist(backend: Any) -> None:
    q, k, v = qkv(backend)
    refuse(OptionError, ("fast", "portable"), lambda: attnspec.attention(q, k, v, implementation="fast"))


@pytest.mark.clause("ERROR-1", "SHAPE-4")
def test_a_refusal_leaves_the_inputs_alone(backend: Any) -> None:
    arrays = qkv(backend)
    before = [np.array(backend.to_numpy(x)) for x in arrays]
    refuse(OptionError, ("softcap",), lambda: attnspec.attention(*arrays, softcap=-1.0))
    for x, was in zip(arrays, before, strict=True):
        np.testing.assert_array_equal(backend.to_numpy(x), was)


@pytest.mark.clause("ERROR-2")
def test_an_unknown_backend_lists_those_that_exist(backend: Any) -> None:
    with pytest.raises(UnknownBackendError) as caught:
        choose("no-such-backend")
    assert isinstance(caught.value, ImportError)
    assert "no-such-backend" in str(caught.value)
    assert backend.name in str(caught.value)


@pytest.mark.clause("ERROR-2")
def test_a_backend_has_the_functions_of_attnspec(backend: Any) -> None:
    assert backend.attention is attnspec.attention
    assert backend.name in registry.registered()
    assert set(backend.capabilities) <= set(registry.CAPABILITIES)
