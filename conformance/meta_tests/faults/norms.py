"""Wrong norms and skip connections: NORM."""

from __future__ import annotations

import attnspec
from attnspec import block, norm, residual
from attnspec._compat import namespace, widened

from .registry import breaks


def _norm(patch, normalised):
    patch.setattr(norm, "normalised", normalised)
    patch.setattr(residual, "normalised", normalised)


def _norm_by(patch, deviations):
    """Every layer norm is (x - mean) / deviations(namespace, x, eps) * gamma + beta."""

    def normalised(x, gamma, beta, eps):
        x, xp = widened(x), namespace(x)
        return norm._affine((x - xp.mean(x, axis=-1, keepdims=True)) / deviations(xp, x, eps), gamma, beta)

    _norm(patch, normalised)


@breaks("NORM-1", "test_norm")
def sample_variance(patch):
    _norm_by(
        patch, lambda xp, x, eps: xp.sqrt(xp.var(x, axis=-1, keepdims=True, correction=min(1, x.shape[-1] - 1)) + eps)
    )


@breaks("NORM-1", "test_norm")
def eps_outside_the_root(patch):
    _norm_by(patch, lambda xp, x, eps: xp.std(x, axis=-1, keepdims=True) + eps)


@breaks("NORM-1", "test_norm")
def eps_left_out(patch):
    right = norm.normalised
    _norm(patch, lambda x, gamma, beta, eps: right(x, gamma, beta, 0.0))


@breaks("NORM-1", "test_norm")
def eps_of_another_library(patch):
    """1e-6 where 1e-5 was asked for."""
    right = norm.normalised
    _norm(patch, lambda x, gamma, beta, eps: right(x, gamma, beta, 0.1 * eps))


@breaks("NORM-1", "test_norm")
def mean_square_less_square_of_mean(patch):
    def deviations(xp, x, eps):
        square, mean = xp.mean(x * x, axis=-1, keepdims=True), xp.mean(x, axis=-1, keepdims=True)
        return xp.sqrt(xp.abs(square - mean * mean) + eps)

    _norm_by(patch, deviations)


@breaks("NORM-1", "test_norm")
def squares_in_half_precision(patch):
    right = norm.layer_norm

    def layer_norm(x, gamma=None, beta=None, *, eps=1e-5):
        xp = namespace(x)
        if x.dtype != getattr(xp, "float16", None):
            return right(x, gamma, beta, eps=eps)
        d = x - xp.mean(x, axis=-1, keepdims=True)
        return norm._affine(d / xp.sqrt(xp.mean(d * d, axis=-1, keepdims=True) + eps), gamma, beta)

    patch.setattr(attnspec, "layer_norm", layer_norm)


@breaks("NORM-1", "test_norm")
def float64_in_float32(patch):
    right = norm.normalised

    def normalised(x, gamma, beta, eps):
        xp = namespace(x)
        return xp.astype(right(xp.astype(x, xp.float32), gamma, beta, eps), x.dtype)

    _norm(patch, normalised)


@breaks("NORM-1", "test_norm")
def beta_before_gamma(patch):
    right = norm.normalised

    def normalised(x, gamma, beta, eps):
        y = right(x, None, None, eps)
        y = y if beta is None else y + beta
        return y if gamma is None else y * gamma

    _norm(patch, normalised)


@breaks("NORM-1", "test_norm")
def statistics_over_rows_too(patch):
    right = norm.normalised

    def normalised(x, gamma, beta, eps):
        xp = namespace(x)
        flat = right(xp.reshape(x, (-1,)), None, None, eps) if 0 not in x.shape else x
        return norm._affine(xp.reshape(flat, x.shape), gamma, beta)

    _norm(patch, normalised)


@breaks("NORM-1", "test_norm")
def constant_rows_show_the_rounding_of_their_mean(patch):
    """A mean off by one unit, which a small variance magnifies."""

    def normalised(x, gamma, beta, eps):
        x, xp = widened(x), namespace(x)
        d = x - xp.mean(x, axis=-1, keepdims=True) * (1 + 2.0**-23)
        return norm._affine(d / xp.sqrt(xp.mean(d * d, axis=-1, keepdims=True) + eps), gamma, beta)

    _norm(patch, normalised)


@breaks("NORM-1", "test_norm")
def rms_norm_takes_the_mean_off(patch):
    right = norm.layer_norm
    patch.setattr(attnspec, "rms_norm", lambda x, gamma=None, *, eps: right(x, gamma, None, eps=eps))


@breaks("NORM-1", "test_norm")
def rms_norm_has_eps_outside_the_root(patch):
    def rms_norm(x, gamma=None, *, eps):
        xp = namespace(x)
        return norm._affine(x / (xp.sqrt(xp.mean(x * x, axis=-1, keepdims=True)) + eps), gamma, None)

    patch.setattr(attnspec, "rms_norm", rms_norm)


@breaks("NORM-1", "test_norm")
def negative_eps_accepted(patch):
    patch.setattr(norm, "number", lambda name, x, **bounds: x)


@breaks("NORM-2", "test_norm")
def pre_norm_for_post_norm(patch):
    def add_and_norm(x, sublayer_out, gamma=None, beta=None, *, eps=1e-5, dropout=None):
        return residual.add(x, norm.layer_norm(sublayer_out, gamma, beta, eps=eps), dropout)

    patch.setattr(attnspec, "add_and_norm", add_and_norm)
    patch.setattr(block, "add_and_norm", add_and_norm)


@breaks("NORM-2", "test_norm")
def post_norm_for_pre_norm(patch):
    def pre_norm(x, sublayer, gamma=None, beta=None, *, eps=1e-5, dropout=None):
        return attnspec.add_and_norm(x, sublayer(x), gamma, beta, eps=eps, dropout=dropout)

    patch.setattr(attnspec, "pre_norm", pre_norm)


@breaks("NORM-2", "test_norm")
def skip_connection_left_out(patch):
    def add_and_norm(x, sublayer_out, gamma=None, beta=None, *, eps=1e-5, dropout=None):
        return norm.layer_norm(sublayer_out, gamma, beta, eps=eps)

    patch.setattr(attnspec, "add_and_norm", add_and_norm)


@breaks("NORM-2", "test_norm")
def dropout_after_the_sum(patch):
    def add_and_norm(x, sublayer_out, gamma=None, beta=None, *, eps=1e-5, dropout=None):
        summed = x + sublayer_out
        if dropout is not None:
            summed = attnspec.dropout(summed, dropout.rate, dropout.rng)
        return norm.layer_norm(summed, gamma, beta, eps=eps)

    patch.setattr(attnspec, "add_and_norm", add_and_norm)


@breaks("NORM-2", "test_norm")
def dropout_of_the_skip_connection_ignored(patch):
    right = residual._sum
    patch.setattr(residual, "_sum", lambda x, y, dropout: right(x, y, None))


@breaks("NORM-2", "test_norm")
def sum_rounded_to_half_before_the_norm(patch):
    right = residual._sum

    def rounded(x, y, dropout):
        summed = right(x, y, dropout)
        xp = namespace(summed)
        return xp.astype(xp.astype(summed, x.dtype), summed.dtype)

    patch.setattr(residual, "_sum", rounded)


@breaks("NORM-1", "test_norm")
def rows_of_any_size_are_squared_as_they_are(patch):
    def squared(x, eps):
        xp = namespace(x)
        d = x - x[..., :1]
        d = d - xp.mean(d, axis=-1, keepdims=True)
        return d / xp.sqrt(xp.mean(d * d, axis=-1, keepdims=True) + eps)

    patch.setattr(norm, "_standardised_in_range", squared)
