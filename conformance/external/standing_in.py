"""A subject of the catalogue of wrong attentions in the place of attnspec's, for suites that ask attnspec's functions.

The subjects answer plain calls in NumPy. Here they take what `attnspec.attention` takes, on any framework's arrays.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import array_api_compat
import numpy as np
from attnspec_conformance import masks
from attnspec_conformance.subjects import Subject
from attnspec_conformance.trials import Call

from attnspec import as_bias, errors, rules
from attnspec.shapes import Span


@contextlib.contextmanager
def put_in_place(subject: Subject, integration: str) -> Iterator[None]:
    """While it lasts, `attnspec.integrations.<integration>` asks the subject for attention."""
    module = importlib.import_module(f"attnspec.integrations.{integration}")
    made = functions(subject)
    with contextlib.ExitStack() as stack:
        for name in made.keys() & vars(module).keys():
            stack.enter_context(mock.patch.object(module, name, made[name]))
        yield


def functions(subject: Subject) -> dict[str, Callable[..., Any]]:
    """`attention`, `attention_with_lse` and `attention_weights` of attnspec's signatures, answered by the subject."""

    def attention(q: Any, k: Any, v: Any, **options: Any) -> Any:
        return like(q, _asked(subject, q, k, v, "out", options).out)

    def attention_with_lse(q: Any, k: Any, v: Any, **options: Any) -> Any:
        answer = _asked(subject, q, k, v, "lse", options)
        return like(q, answer.out), like(q, answer.lse, answer.lse_dtype)

    def attention_weights(q: Any, k: Any, **options: Any) -> Any:
        v = np.zeros((*k.shape[:-1], 1), np.float32)
        return like(q, _asked(subject, q, k, v, "weights", options).weights)

    return {f.__name__: f for f in (attention, attention_with_lse, attention_weights)}


def _asked(subject: Subject, q: Any, k: Any, v: Any, want: Any, options: dict[str, Any]) -> Any:
    """The subject's answer. What it refuses, or does not support, attnspec would not have: an error either way."""
    dtype = str(q.dtype).rpartition(".")[2]
    places = {name: _positions(options.pop(name, None)) for name in ("q_positions", "k_positions")}
    mask, bias, sink = (options.pop(name, None) for name in ("mask", "bias", "sink"))
    span = _span(q.shape[-2], places["q_positions"]), _span(k.shape[-2], places["k_positions"])
    call = Call(
        *map(_plain, (q, k, v)),
        mask=None if mask is None else _mask(rules.as_mask(mask)),
        bias=None if bias is None else _plain(as_bias(bias).tile(*span, xp=np, device=None)),
        sink=None if sink is None else _plain(sink),
        dtype=dtype,
        want=want,
        **places,
        **{name: float(value) for name, value in options.items() if name in ("scale", "softcap") and value is not None},
    )
    if strangers := {name for name, value in options.items() if value is not None} - {"scale", "softcap"}:
        msg = f"no suite was expected to ask for {', '.join(sorted(strangers))}"
        raise NotImplementedError(msg)
    if reason := subject.supports(call):
        raise errors.OptionError(reason)
    answer = subject.forward(call)
    if answer.error is not None:
        raise errors.ShapeError(answer.message)
    return answer


def _mask(mask: Any) -> masks.Mask:
    """A rule of attnspec as plain data."""
    match mask:
        case rules.Window(None, 0, offset, align):
            return masks.Causal(_ints(offset), align)
        case rules.Window(left, right, offset, align):
            return masks.Window(left, right, _ints(offset), align)
        case rules.Padding(lengths):
            return masks.Padding(_plain(lengths))
        case rules.Segments(q_ids, k_ids):
            return masks.Segments(_plain(q_ids), _plain(k_ids))
        case rules.ArrayMask(array):
            return masks.Dense(_plain(array))
        case rules.And(a, b):
            return masks.Both(_mask(a), _mask(b))
        case rules.Or(a, b):
            return masks.Either(_mask(a), _mask(b))
        case rules.Not(a):
            return masks.Inverse(_mask(a))
    msg = f"no suite was expected to ask for a mask of type {type(mask).__name__}"
    raise NotImplementedError(msg)


def _span(size: int, places: Any) -> Span:
    index = np.asarray(range(size) if places is None else places)
    return Span(0, size, size, index, None)


def _positions(places: Any) -> Any:
    return places if places is None or isinstance(places, range) else _plain(places)


def _ints(x: Any) -> Any:
    return x if isinstance(x, int) else _plain(x)


def _plain(x: Any) -> Any:
    """NumPy's array with the same numbers, half types as float32."""
    if array_api_compat.is_torch_array(x):
        x = x.detach().cpu()
        return x.numpy() if x.dtype.is_floating_point is False else x.to(_wide(x.dtype)).numpy()
    x = np.asarray(x)
    return x.astype(np.float32) if x.dtype.kind not in "biu" and x.dtype.itemsize < 4 else x


def _wide(dtype: Any) -> Any:
    import torch

    return torch.float64 if dtype == torch.float64 else torch.float32


def like(x: Any, answer: Any, dtype: str = "") -> Any:
    """The answer in the framework of x, and in its dtype unless another is named."""
    xp = array_api_compat.array_namespace(x)
    return xp.asarray(answer, dtype=getattr(xp, dtype) if dtype else x.dtype)
