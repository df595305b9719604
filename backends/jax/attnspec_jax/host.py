"""What JAX adds to the standard: pytrees, recorded loops, custom derivatives, matmul precision."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from typing import Any

import jax
from jax.experimental.xla_metadata import set_xla_metadata
from jax.extend.core import get_opaque_trace_state

from attnspec.host import Host, Kernel
from attnspec.prng import GROUPS, ROTATIONS, group, rounds, schedule
from attnspec.struct import flatten, unflatten

from .cudnn import CUDNN
from .derivative import with_transpose
from .heads import HEADS
from .numerics import numerics
from .placement import platform


def scope() -> Any:
    """Full float32 products, also on hardware whose default is lower."""
    return jax.default_matmul_precision("highest")


def traced(*arrays: object) -> bool:
    """Whether a program is being recorded, or any of them stands for a value of one."""
    outside = get_opaque_trace_state(convention="flax") == _OUTSIDE
    return not outside or any(isinstance(a, jax.core.Tracer) for a in arrays)


# Inside `jit` JAX records every operation, also those on arrays with values, so to be no tracer is not enough. A thread
# of its own is outside of every transform, whoever imports this module.
with ThreadPoolExecutor(1) as _thread:
    _OUTSIDE = _thread.submit(get_opaque_trace_state, convention="flax").result()


def concrete(*arrays: object) -> bool:
    """Arrays with values, outside of every transform."""
    return not traced(*arrays) and all(isinstance(a, jax.Array) for a in arrays)


def run(function: Callable[..., Any], operands: Any, *static: Any) -> Any:
    """`jax.jit`, cached by function; a plain call in a program being recorded, or on what is no array."""
    leaves, tree = jax.tree.flatten(operands)
    if traced(*leaves) or not all(isinstance(x, jax.Array | int) for x in leaves):
        return function(operands, *static)
    # Python's integers are random words: int32 whatever the default width.
    arrays = (jax.numpy.int32(x) if isinstance(x, int) else x for x in leaves)
    result = _compiled(function)(tree, static, *arrays)
    # An operand that only says where (`like=`) is dropped from the program, and with it the device.
    bound = [device for x in leaves if isinstance(x, jax.Array) and (device := device_of(x)) is not None]
    return jax.device_put(result, bound[0]) if bound else result


@cache
def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    # Flat: to take a tree of Structs apart again, and to put it together, would take longer than a small call.
    def of_leaves(tree: Any, static: tuple[Any, ...], *leaves: Any) -> Any:
        return function(tree.unflatten(leaves), *static)

    return jax.jit(of_leaves, static_argnums=(0, 1))  # type: ignore[no-any-return]


def scan(step: Callable[[Any, Any], tuple[Any, Any]], carry: Any, start: int, stop: int) -> tuple[Any, Any]:
    """`lax.scan`, which reverse mode differentiates; a `while` loop would not be."""
    return jax.lax.scan(step, carry, jax.numpy.arange(start, stop))  # type: ignore[no-any-return]


def with_vjp(
    forward: Callable[..., Any], backward: Callable[..., Any], *, reverse_only: bool = False
) -> Callable[..., Any]:
    """`with_transpose`, where anybody may differentiate."""
    watched = with_transpose(forward, backward, reverse_only=reverse_only)
    return lambda *arrays: (forward if concrete(*arrays) else watched)(*arrays)


@jax.jit  # type: ignore[untyped-decorator]
def threefry(rng: tuple[Any, Any], counter: tuple[Any, Any]) -> Any:
    """`prng.rounds`: of many counters as it stands, of few as a loop, which is compiled in less time."""
    int32 = jax.numpy.int32
    rng, counter = (int32(rng[0]), int32(rng[1])), (int32(counter[0]), int32(counter[1]))
    # XLA fuses what stands, and each reader of the words makes them anew: still less than a loop's passes over memory.
    if max(word.size for word in counter) >= _MANY:
        return rounds(rng, counter)
    ks, rotations = jax.numpy.stack(schedule(rng)), int32(ROTATIONS)

    def step(n: Any, words: tuple[Any, Any]) -> tuple[Any, Any]:
        return group(words, (ks[(n + 1) % 3], ks[(n + 2) % 3] + (n + 1)), rotations[n % 2])

    start = jax.numpy.broadcast_arrays(counter[0] + ks[0], counter[1] + ks[1])
    return jax.lax.fori_loop(int32(0), int32(GROUPS), step, tuple(start))


_MANY = 2**12  # counters


def sealed(function: Callable[..., Any], *arrays: Any, **static: Any) -> Any:
    """One call, compiled by itself. XLA's compiler for CPUs would open it, and fuse a long chain many times over."""
    result = _sealed(function, tuple(static))(*arrays, **static)
    # The mark belongs to the call that made the result, not to the operations inside it.
    return set_xla_metadata(result, inlineable="false") if traced(*arrays) and platform() == "cpu" else result


@cache
def _sealed(function: Callable[..., Any], static: tuple[str, ...]) -> Callable[..., Any]:
    return jax.jit(function, static_argnames=static)  # type: ignore[no-any-return]


def apart() -> Any:
    """64 bits, whatever the process has by default."""
    return (jax.enable_x64 if hasattr(jax, "enable_x64") else jax.experimental.enable_x64)(True)


def register(cls: type) -> None:
    """Make a Struct a pytree whose paths are its field names."""
    jax.tree_util.register_pytree_with_keys(cls, _flatten_with_keys, partial(unflatten, cls), flatten_func=flatten)


def _flatten_with_keys(struct: Any) -> Any:
    children, aux = flatten(struct)
    names, _ = aux
    keyed = [(jax.tree_util.GetAttrKey(n), child) for n, child in zip(names, children, strict=True)]
    return keyed, aux


def device_of(x: Any) -> Any:
    """The device that an array is bound to; JAX places the others itself, and a sharding is no device to create on."""
    bound = concrete(x) and x.committed and len(x.devices()) == 1
    return next(iter(x.devices())) if bound else None


class _Kernels(Sequence[Kernel]):
    """Those of the platform, which is asked for when a call comes and not when a Struct is made."""

    def __len__(self) -> int:
        return len(self._found())

    def __getitem__(self, n: Any) -> Any:
        return self._found()[n]

    def _found(self) -> tuple[Kernel, ...]:
        return {"cpu": (HEADS,), "gpu": (CUDNN,)}.get(platform(), ())


HOST = Host(
    scope=scope,
    concrete=concrete,
    traced=traced,
    run=run,
    scan=scan,
    rows=jax.lax.dynamic_slice_in_dim,
    with_vjp=with_vjp,
    threefry=threefry,
    register=register,
    device_of=device_of,
    kernels=_Kernels(),
    numerics=numerics,
    sealed=sealed,
    apart=apart,
)
