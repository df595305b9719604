"""The host seam: kernels are asked, may decline, and never change what `portable` answers; loops and unknown arrays."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributions import code, distribution, python

import attnspec
from attnspec import host
from attnspec.errors import KernelError, OptionError

Q, K, D, E = 3, 5, 4, 2
ARRAYS = [np.random.default_rng(0).standard_normal(shape) for shape in ((Q, D), (K, D), (K, E))]


def _kernel(*, declines: str | None = None, with_lse: bool = True, calls: list[Any] | None = None) -> host.Kernel:
    def call(request: Any) -> tuple[Any, Any]:
        if calls is not None:
            calls.append(request)
        rows = request.q.shape[:-1]
        return np.full((*rows, request.v.shape[-1]), 7.0), np.full(rows, 8.0) if with_lse else None

    return host.Kernel("seven", lambda request: declines, call)


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> Any:
    def install(*found: host.Kernel) -> None:
        monkeypatch.setitem(host._hosts, "numpy", replace(host.host_of(ARRAYS[0]), kernels=found))

    return install


def test_auto_and_native_take_a_kernel_and_portable_does_not(kernels: Any) -> None:
    kernels(_kernel())
    for implementation in ("auto", "native"):
        assert np.all(attnspec.attention(*ARRAYS, implementation=implementation) == 7.0)
    assert not np.any(attnspec.attention(*ARRAYS, implementation="portable") == 7.0)


def test_a_kernel_that_declines_is_passed_over_and_native_says_why(kernels: Any) -> None:
    expected = attnspec.attention(*ARRAYS)
    kernels(_kernel(declines="no heads of width 4"))
    assert np.array_equal(attnspec.attention(*ARRAYS), expected)
    with pytest.raises(KernelError, match=r"seven: no heads of width 4"):
        attnspec.attention(*ARRAYS, implementation="native")


def test_native_without_kernels_says_so(kernels: Any) -> None:
    kernels()
    with pytest.raises(KernelError, match=r"\(1, 3, 4\) float64.*has none"):
        attnspec.attention(*ARRAYS, implementation="native")


def test_a_kernels_own_lse_is_given(kernels: Any) -> None:
    kernels(_kernel())
    assert np.all(attnspec.attention_with_lse(*ARRAYS)[1] == 8.0)


def test_a_kernel_without_lse_answers_who_asks_for_none(kernels: Any) -> None:
    kernels(_kernel(with_lse=False))
    assert np.all(attnspec.attention(*ARRAYS) == 7.0)


def test_a_kernel_is_asked_about_the_axes_of_the_call(kernels: Any) -> None:
    asked: list[int] = []

    def supports(request: Any) -> str | None:
        asked.append(request.axes.D)
        return None if request.axes.D == D else f"no width {request.axes.D}"

    kernels(replace(_kernel(), supports=supports))
    assert np.all(attnspec.attention(*ARRAYS) == 7.0)
    assert asked == [D]


def test_asking_for_lse_keeps_the_out_of_a_kernel_that_has_none(kernels: Any) -> None:
    _, expected = attnspec.attention_with_lse(*ARRAYS)
    kernels(_kernel(with_lse=False))
    out, lse = attnspec.attention_with_lse(*ARRAYS)
    assert np.all(out == 7.0)
    assert np.array_equal(lse, expected)


def test_a_kernel_sees_a_validated_request(kernels: Any) -> None:
    calls: list[Any] = []
    kernels(_kernel(calls=calls))
    attnspec.attention(*ARRAYS, mask=attnspec.causal(), scale=0.5)
    (request,) = calls
    assert (request.axes.Q, request.axes.K, request.axes.D, request.axes.E) == (Q, K, D, E)
    assert request.scale == 0.5


def test_an_implementation_of_another_name_is_refused() -> None:
    with pytest.raises(OptionError, match="fastest"):
        attnspec.attention(*ARRAYS, implementation="fastest")


def test_a_host_that_does_not_load_is_the_default_with_its_error_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        def load(self) -> None:
            raise RuntimeError("half installed")

    class Foreign:
        pass

    Foreign.__module__ = "nowhere.arrays"
    monkeypatch.setitem(host._entries, "nowhere", Broken())  # type: ignore[arg-type]
    try:
        assert host.host_of(Foreign()) is host.DEFAULT
        assert "half installed" in str(host.errors["nowhere"])
    finally:
        host._hosts.pop("nowhere", None)
        host.errors.pop("nowhere", None)


def test_an_installed_host_is_taken_and_told_of_every_struct() -> None:
    """What a copied attnspec does, which has no entry points of its own."""

    class Foreign:
        pass

    Foreign.__module__ = "elsewhere.arrays"
    told: list[type] = []
    try:
        mine = host.Host(register=told.append)
        host.install("elsewhere", mine)
        assert host.host_of(Foreign()) is mine
        assert attnspec.MultiHeadParams in told or type(attnspec.causal()) in told
    finally:
        host._hosts.pop("elsewhere", None)


def test_a_small_call_asks_the_kernels_that_take_small_calls(kernels: Any) -> None:
    kernels(replace(_kernel(), from_scores=Q * K))
    assert np.all(attnspec.attention(*ARRAYS) == 7.0)
    asked: list[Any] = []
    kernels(replace(_kernel(calls=asked), from_scores=Q * K + 1))
    assert not np.all(attnspec.attention(*ARRAYS) == 7.0)
    assert not asked
    assert np.all(attnspec.attention(*ARRAYS, implementation="native") == 7.0)


def test_a_kernel_that_cannot_be_recorded_never_sees_what_records(kernels: Any) -> None:
    calls: list[Any] = []
    kernels(_kernel(calls=calls))
    out, _ = attnspec.vjp(attnspec.attention, *ARRAYS)
    assert not np.any(out == 7.0)
    assert not calls
    kernels(replace(_kernel(calls=calls), recorded=True))
    attnspec.vjp(attnspec.attention, *ARRAYS)
    assert len(calls) == 1


KERNEL = """
import numpy as np
from attnspec.host import Kernel

def seven(request):
    return np.full((*request.q.shape[:-1], request.v.shape[-1]), 7.0), None

kernel = Kernel("seven", lambda request: None, seven)
broken = "no kernel"
"""


def test_a_kernel_of_another_distribution_is_asked_first_and_a_broken_one_stops_nobody(tmp_path: Path) -> None:
    points = {"numpy": "seven:kernel", "numpy.second": "seven:broken", "numpy.third": "missing:kernel"}
    distribution(tmp_path, "attnspec-seven", points, group="attnspec.kernels", seven=KERNEL)
    program = """
        import numpy as np, attnspec
        x = np.ones((3, 2))
        assert np.all(attnspec.attention(x, x, x) == 7.0)
        assert np.all(attnspec.attention(x, x, x, implementation="portable") == 1.0)
        print(*sorted(attnspec.host.errors))
    """
    assert code(program, paths=(tmp_path,)).split("\n")[0] == "kernel numpy.second kernel numpy.third"


@pytest.mark.parametrize("framework", ["jax", "torch"])
def test_a_kernel_may_be_added_to_a_host_that_has_registered_structs(framework: str) -> None:
    pytest.importorskip(framework)
    program = f"""
        import {framework}, attnspec
        from attnspec.backend import {framework} as backend
        from attnspec.host import Kernel, add_kernel, errors, host_of
        attnspec.random.key(0)
        x = backend.asarray([[[0.0]]], dtype="float32")
        seven = Kernel("seven", lambda request: None, lambda request: (x + 7, None))
        add_kernel(type(x).__module__.partition(".")[0], seven)
        assert not errors, errors
        assert float(attnspec.attention(x, x, x)[0, 0, 0]) == 7.0
        attnspec.random.key(0)
        assert not errors, errors
    """
    code(program)


STRUCTS_BEFORE_THEIR_FRAMEWORK = """
import numpy as np, attnspec
from attnspec import host
params = attnspec.MultiHeadParams.init(attnspec.random.key(0), model_width=8, heads=2, like=np.zeros(1, "float32"))
import {framework}
from attnspec.backend import {framework}
assert not host.errors, host.errors
leaves = {leaves}(params)
assert len(leaves) == 8, leaves
"""


@pytest.mark.parametrize(
    ("framework", "leaves"),
    [("jax", "__import__('jax').tree.leaves"), ("torch", "__import__('torch').utils._pytree.tree_leaves")],
)
def test_a_struct_made_before_its_framework_is_imported_is_a_pytree_once_the_backend_is_picked(
    framework: str, leaves: str
) -> None:
    pytest.importorskip(framework)
    done = python("-c", STRUCTS_BEFORE_THEIR_FRAMEWORK.format(framework=framework, leaves=leaves))
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("framework", ["jax", "torch"])
def test_a_host_that_makes_structs_while_it_loads_is_no_broken_one(framework: str) -> None:
    pytest.importorskip(framework)
    program = (
        f"import {framework}, attnspec; attnspec.random.key(0); assert not attnspec.host.errors, attnspec.host.errors"
    )
    done = python("-c", program)
    assert done.returncode == 0, done.stderr


def test_a_host_whose_register_fails_stops_nobody() -> None:
    def fails(cls: type) -> None:
        raise RuntimeError(f"no place for {cls.__name__}")

    try:
        attnspec.causal()
        host.install("faulty", host.Host(register=fails))
        assert host._hosts["faulty"] is host.DEFAULT
        assert "no place for" in str(host.errors["faulty"])
        attnspec.padding(3)
    finally:
        host._hosts.pop("faulty", None)
        host.errors.pop("faulty", None)
