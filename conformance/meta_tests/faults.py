"""Faults outside attention proper, each put in the place of a part of attnspec in a run of its own.

As a pytest plug-in (`-p faults`) this module installs the fault that ATTNSPEC_FAULT names before a test is imported.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from attnspec_conformance import subjects

import attnspec
from attnspec import block, cache, multihead, norm, prng, registry, request, residual, textbook
from attnspec._compat import namespace
from attnspec.errors import AttnspecError


@dataclass(frozen=True)
class Fault:
    """What has to fail: a clause, by these tests of the suite, on a backend that differentiates or on NumPy."""

    clause: str
    tests: str
    install: Callable[[], None]
    differentiates: bool = False


FAULTS: dict[str, Fault] = {}


def breaks(clause: str, tests: str, **where: Any) -> Callable[[Callable[[], None]], Callable[[], None]]:
    """Enter a fault; the function's name says what is wrong."""

    def enter(install: Callable[[], None]) -> Callable[[], None]:
        FAULTS[install.__name__] = Fault(clause, tests, install, **where)
        return install

    return enter


def pytest_configure() -> None:
    chosen().install()


def pytest_collection_modifyitems(items: list[Any]) -> None:
    clause = chosen().clause
    items[:] = [item for item in items if any(clause in mark.args for mark in item.iter_markers("clause"))]


def chosen() -> Fault:
    return FAULTS[os.environ["ATTNSPEC_FAULT"]]


def _norm_by(deviations: Callable[[Any, Any, Any], Any]) -> None:
    """Every layer norm is (x - mean) / deviations(namespace, x, eps) * gamma + beta."""

    def normalised(x, gamma, beta, eps):
        xp = namespace(x)
        y = (x - xp.mean(x, axis=-1, keepdims=True)) / deviations(xp, x, eps)
        y = y if gamma is None else y * gamma
        return y if beta is None else y + beta

    norm.normalised = residual.normalised = normalised


@breaks("NORM-1", "test_norm")
def sample_variance() -> None:
    _norm_by(lambda xp, x, eps: xp.sqrt(xp.var(x, axis=-1, keepdims=True, correction=min(1, x.shape[-1] - 1)) + eps))


@breaks("NORM-1", "test_norm")
def eps_outside_the_root() -> None:
    _norm_by(lambda xp, x, eps: xp.std(x, axis=-1, keepdims=True) + eps)


@breaks("NORM-1", "test_norm")
def mean_square_less_square_of_mean() -> None:
    def deviations(xp, x, eps):
        square, mean = xp.mean(x * x, axis=-1, keepdims=True), xp.mean(x, axis=-1, keepdims=True)
        return xp.sqrt(xp.abs(square - mean * mean) + eps)

    _norm_by(deviations)


@breaks("NORM-2", "test_norm")
def pre_norm_for_post_norm() -> None:
    def add_and_norm(x, sublayer_out, gamma=None, beta=None, *, eps=1e-5, dropout=None):
        return residual.add(x, norm.layer_norm(sublayer_out, gamma, beta, eps=eps), dropout)

    attnspec.add_and_norm = block.add_and_norm = add_and_norm


@breaks("NORM-2", "test_norm")
def dropout_after_the_sum() -> None:
    def add_and_norm(x, sublayer_out, gamma=None, beta=None, *, eps=1e-5, dropout=None):
        summed = x + sublayer_out
        if dropout is not None:
            summed = attnspec.dropout(summed, dropout.rate, dropout.rng)
        return norm.layer_norm(summed, gamma, beta, eps=eps)

    attnspec.add_and_norm = add_and_norm


@breaks("MULTIHEAD-1", "test_multihead")
def heads_reshaped_and_not_moved() -> None:
    moved = multihead.into_heads

    def into_heads(x, w, b):
        y = moved(x, w, b)
        *lead, H, Q, D = y.shape
        xp = namespace(y)
        return xp.reshape(xp.reshape(xp.moveaxis(y, -3, -2), (*lead, Q * H * D)), (*lead, H, Q, D))

    multihead.into_heads = into_heads


@breaks("MULTIHEAD-1", "test_multihead")
def scale_of_the_model_width() -> None:
    def scaled(function):
        def attend(q, *arrays, **options):
            options.setdefault("scale", (q.shape[-1] * q.shape[-3]) ** -0.5)
            return function(q, *arrays, **options)

        return attend

    multihead.attention = scaled(multihead.attention)
    multihead.attention_weights = scaled(multihead.attention_weights)


@breaks("MULTIHEAD-2", "test_multihead")
def padded_rows_cut_off() -> None:
    """PD-02: the output is as long as the longest sequence and not as the input."""
    whole = attnspec.transformer_stack

    def transformer_stack(params, x, *, mask=None, **options):
        y = whole(params, x, mask=mask, **options)
        return y if mask is None else y[..., :3, :]

    attnspec.transformer_stack = transformer_stack


@breaks("MULTIHEAD-3", "test_multihead")
def weights_averaged_over_heads() -> None:
    by_head = attnspec.multi_head_weights

    def multi_head_weights(*arguments, **options):
        weights = by_head(*arguments, **options)
        return namespace(weights).mean(weights, axis=-3)

    attnspec.multi_head_weights = multi_head_weights


@breaks("MULTIHEAD-3", "test_multihead")
def bias_lost_on_the_way_to_the_heads() -> None:
    attend = multihead.attention
    multihead.attention = lambda *arrays, bias=None, **options: attend(*arrays, **options)


@breaks("MULTIHEAD-4", "test_multihead")
def rows_past_the_end_overwrite_the_last() -> None:
    """What a clamped update of a slice does."""
    append = cache.Cache.append

    def clamped(self, k, v):
        if isinstance(self.length, int):
            self = cache.Cache(self.k, self.v, min(self.length, self.capacity - k.shape[-2]))
        return append(self, k, v)

    cache.Cache.append = clamped


@breaks("MULTIHEAD-4", "test_multihead")
def steps_that_start_at_position_zero_again() -> None:
    cache.Cache.positions = lambda self, n: range(n)


@breaks("DROPOUT-1", "test_dropout")
def any_rate_accepted() -> None:
    request.Dropout.check = lambda self: None


@breaks("DROPOUT-3", "test_random")
def one_wrong_rotation() -> None:
    prng._ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 23))


@breaks("SOFTMAX-5", "test_softmax")
def parts_averaged() -> None:
    def merge_attention(parts):
        outs, lses = zip(*parts, strict=True)
        return sum(outs) / len(outs), sum(lses) / len(lses)

    attnspec.merge_attention = merge_attention


@breaks("ERROR-1", "test_errors")
def refusals_without_a_type() -> None:
    right = attnspec.attention

    def attention(*arrays, **options):
        try:
            return right(*arrays, **options)
        except AttnspecError as error:
            raise ValueError(str(error)) from None

    attnspec.attention = attention


@breaks("ERROR-2", "test_errors")
def unknown_backend_is_a_key_error() -> None:
    load = registry.load

    def from_a_table(name):
        if name not in registry.registered():
            raise KeyError(name)
        return load(name)

    registry.load = from_a_table


@breaks("MASK-6c", "test_gradients", differentiates=True)
def hidden_values_multiplied_by_zero() -> None:
    """The textbook's attention: 0 times what nobody sees."""

    def attention(q, k, v, *, mask=None, **options):
        return textbook.attention(q, k, v, True if mask is None else mask)

    subjects._FUNCTIONS["out"] = attention
