"""A function with a backward pass of its own that keeps forward mode: `jax.custom_vjp` would refuse it.

`with_transpose(forward, backward)` is a `jax.custom_jvp` whose derivative, J t for a tangent t, is one primitive.
Forward mode runs it: it differentiates the operations of `forward`. Reverse mode transposes it: the transpose is
`backward`. Everything else (vmap, jit, higher orders) follows from those two.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

Arrays = Sequence[Any]


class Linear(NamedTuple):
    """A linear map and its transpose, both with the arrays that they depend on first."""

    like: Callable[[Arrays, Arrays], Arrays]  # (saved, tangents) -> the results, whose tangents have their shapes
    push: Callable[[Arrays, Arrays], Arrays]  # (saved, tangents) -> tangents of the results
    pull: Callable[[Arrays, Arrays], Arrays]  # (saved, cotangents) -> cotangents of the tangents


def with_transpose(
    forward: Callable[..., Any], backward: Callable[..., Any], *, reverse_only: bool = False
) -> Callable[..., Any]:
    """`forward`, differentiated through `backward` in reverse mode and by its own operations in forward mode."""
    function = jax.custom_jvp(forward)

    @function.defjvp  # type: ignore[untyped-decorator]
    def rule(arrays: Arrays, tangents: Arrays) -> tuple[Any, Any]:
        results = function(*arrays)
        floats = [n for n, x in enumerate(arrays) if jax.numpy.issubdtype(x.dtype, jax.numpy.floating)]

        def like(saved: Arrays, moved: Arrays) -> Arrays:
            return forward(*saved[: len(tangents)])  # type: ignore[no-any-return]

        def push(saved: Arrays, moved: Arrays) -> Arrays:
            if reverse_only:
                msg = "reproducible mode has no forward mode: differentiate it with jax.grad or jax.vjp."
                raise NotImplementedError(msg)
            arrays = saved[: len(tangents)]

            def of_floats(*values: Any) -> Any:
                given = dict(zip(floats, values, strict=True))
                return forward(*(given.get(n, x) for n, x in enumerate(arrays)))

            return jax.jvp(of_floats, tuple(arrays[n] for n in floats), tuple(moved))[1]  # type: ignore[no-any-return]

        def pull(saved: Arrays, cotangents: Arrays) -> Arrays:
            arrays, results = saved[: len(tangents)], saved[len(tangents) :]
            gradients = backward(arrays, tuple(results), tuple(cotangents))
            return [gradients[n] for n in floats]

        moved = [tangents[n] for n in floats]
        saved = (*arrays, *results)
        return results, tuple(_linear.bind(*saved, *moved, map=Linear(like, push, pull), count=len(saved)))

    return function  # type: ignore[no-any-return]


_linear = Primitive("attnspec_linear")
_linear.multiple_results = True


def _run(*operands: Any, map: Linear, count: int) -> Arrays:
    return list(map.push(operands[:count], operands[count:]))


def _shapes(*operands: Any, map: Linear, count: int) -> Arrays:
    shapes = (jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding) for x in operands)
    results = jax.eval_shape(lambda *operands: map.like(operands[:count], operands[count:]), *shapes)
    return [jax.core.ShapedArray(x.shape, x.dtype, sharding=x.sharding) for x in results]


def _transposed(cotangents: Arrays, *operands: Any, map: Linear, count: int) -> Arrays:
    given = [ad.instantiate_zeros(g) for g in cotangents]
    gradients = map.pull(operands[:count], given)
    moved = zip(operands[count:], gradients, strict=True)
    return [None] * count + [g if ad.is_undefined_primal(x) else None for x, g in moved]


def _batched(operands: Arrays, axes: Arrays, *, map: Linear, count: int) -> tuple[Arrays, Arrays]:
    size = next(x.shape[axis] for x, axis in zip(operands, axes, strict=True) if axis is not None)
    # Every tangent gets the axis, so that the transpose has it too; what was broadcast for that is summed by JAX.
    moved = [batching.bdim_at_front(x, axis, size) for x, axis in zip(operands[count:], axes[count:], strict=True)]
    saved_axes = list(axes[:count])

    def over(function: Callable[[Arrays, Arrays], Arrays]) -> Callable[[Arrays, Arrays], Arrays]:
        return lambda saved, others: jax.vmap(function, in_axes=(saved_axes, 0))(list(saved), list(others))

    batched = Linear(over(map.like), over(map.push), over(map.pull))
    results = _linear.bind(*operands[:count], *moved, map=batched, count=count)
    return results, [0] * len(results)


def _differentiated(operands: Arrays, tangents: Arrays, *, map: Linear, count: int) -> tuple[Arrays, Arrays]:
    moved = tuple(ad.instantiate_zeros(t) for t in tangents)
    return jax.jvp(lambda *operands: _run(*operands, map=map, count=count), tuple(operands), moved)  # type: ignore[no-any-return]


_linear.def_impl(_run)
_linear.def_abstract_eval(_shapes)
mlir.register_lowering(_linear, mlir.lower_fun(_run, multiple_results=True))
ad.primitive_transposes[_linear] = _transposed
ad.primitive_jvps[_linear] = _differentiated
batching.primitive_batchers[_linear] = _batched
