"""Wrong biases, merges, weights and refusals: SCORE-5, MASK, SOFTMAX, ERROR."""

from __future__ import annotations

import math

import attnspec
from attnspec import bias, fast, positional, registry, request, rule_arrays, rules, shapes, softmax, terms
from attnspec._compat import namespace
from attnspec.errors import AttnspecError

from .registry import breaks


@breaks("SCORE-5", "test_cases")
def alibi_slopes_by_the_formula_for_any_number_of_heads(patch):
    """2**(-8 h / 12) for 12 heads."""
    patch.setattr(bias, "_published_slopes", lambda heads: tuple(2.0 ** (-8 * h / heads) for h in range(1, heads + 1)))


@breaks("SCORE-5", "test_cases")
def alibi_slopes_of_the_next_power_of_two(patch):
    right = bias._published_slopes
    patch.setattr(
        bias, "_published_slopes", lambda heads: right(1 << (heads - 1).bit_length())[:heads] if heads > 1 else right(1)
    )


@breaks("SCORE-5", "test_cases")
def alibi_rewards_later_keys(patch):
    """Signed distances, with no causal mask to hide the positive ones."""

    def tiles(self, q, k, /, *, xp, device):
        distance = xp.astype(positional._ahead(self, q, k, xp, device), xp.float32)
        return lambda part: xp.asarray(part.slopes, dtype=xp.float32)[:, None, None] * distance

    patch.setattr(positional.Alibi, "tiles", tiles)


@breaks("SCORE-5", "test_cases")
def the_last_bias_wins(patch):
    patch.setattr(terms.Sum, "_sum", staticmethod(lambda xp, a, b: b))


@breaks("SCORE-5", "test_extremes")
def buckets_by_a_rounded_logarithm(patch):
    def threshold(exact, most, step, steps):
        return math.ceil(exact * math.exp(math.log(most / exact) * step / steps)) + 1

    patch.setattr(positional, "_log_threshold", threshold)


@breaks("MASK-4", "test_extremes")
def narrow_integers_wrap(patch):
    patch.setattr(rule_arrays, "widened_ints", lambda x: x)


@breaks("MASK-1", "test_errors")
def a_mask_of_numbers_is_cast(patch):
    right = rules.as_mask

    def as_mask(mask):
        number = "dtype" in dir(mask) and any(kind in str(mask.dtype) for kind in ("int", "float"))
        return right(mask != 0 if number else mask)

    patch.setattr(request, "as_mask", as_mask)


@breaks("MASK-2", "test_errors")
def any_mask_shape_accepted(patch):
    patch.setattr(rules, "fits", lambda name, x, axes, tail: None)


@breaks("MASK-3", "test_misuse")
def masks_have_a_truth_value(patch):
    patch.setattr(rules.Rule, "__bool__", lambda self: True)


@breaks("SOFTMAX-5", "test_softmax")
def parts_averaged(patch):
    def merge_attention(parts):
        outs, lses = zip(*parts, strict=True)
        return sum(outs) / len(outs), sum(lses) / len(lses)

    patch.setattr(attnspec, "merge_attention", merge_attention)


def _merged(patch, exp, log, top):
    def merge_attention(parts):
        parts = list(parts)
        xp = namespace(parts[0][0])
        highest = top(xp, parts)
        shares = [exp(xp, lse - highest) for _, lse in parts]
        total = sum(shares)
        out = sum((share / total)[..., None] * part for share, (part, _) in zip(shares, parts, strict=True))
        return xp.astype(out, parts[0][0].dtype), highest + log(xp, total)

    patch.setattr(attnspec, "merge_attention", merge_attention)


@breaks("SOFTMAX-5", "test_softmax")
def merged_without_the_maximum(patch):
    _merged(patch, lambda xp, x: xp.exp(x), lambda xp, x: xp.log(x), lambda xp, parts: 0.0)


def _highest(xp, parts):
    top = parts[0][1]
    for _, lse in parts[1:]:
        top = xp.maximum(top, lse)
    return top


@breaks("SOFTMAX-5", "test_softmax")
def merged_in_base_two(patch):
    _merged(patch, lambda xp, x: 2.0**x, lambda xp, x: xp.log2(x), _highest)


@breaks("SOFTMAX-5", "test_softmax")
def an_empty_part_is_nan(patch):
    """-inf less -inf."""
    _merged(patch, lambda xp, x: xp.exp(x), lambda xp, x: xp.log(x), _highest)


@breaks("SOFTMAX-5", "test_softmax")
def half_parts_merged_in_half(patch):
    right = softmax._weighted

    def weighted(part, share, total):
        made, xp = right(part, share, total), namespace(share)
        return xp.astype(xp.astype(made, part[0].dtype), made.dtype)

    patch.setattr(softmax, "_weighted", weighted)


@breaks("SHAPE-1", "test_errors")
def arrays_of_two_frameworks_mixed(patch):
    patch.setattr(shapes, "together", lambda **arrays: None)


@breaks("SHAPE-3", "test_errors")
def integers_computed_with(patch):
    patch.setattr(shapes, "FLOATING", (*shapes.FLOATING, "int32"))


@breaks("ERROR-1", "test_errors")
def refusals_without_a_type(patch):
    right = attnspec.attention

    def attention(*arrays, **options):
        try:
            return right(*arrays, **options)
        except AttnspecError as error:
            raise ValueError(str(error)) from None

    patch.setattr(attnspec, "attention", attention)


@breaks("ERROR-1", "test_errors")
def refusals_without_numbers(patch):
    right = attnspec.attention

    def attention(*arrays, **options):
        try:
            return right(*arrays, **options)
        except AttnspecError as error:
            raise type(error)("invalid arguments") from None

    patch.setattr(attnspec, "attention", attention)


@breaks("ERROR-2", "test_errors")
def unknown_backend_is_a_key_error(patch):
    load = registry.load

    def from_a_table(name):
        if name not in registry.registered():
            raise KeyError(name)
        return load(name)

    patch.setattr(registry, "load", from_a_table)


@breaks("SOFTMAX-1", "test_extremes")
def weights_are_made_of_an_lse_that_has_lost_its_small_part(patch):
    right = fast.Fast.finish

    def finish(self, part):
        _, lse = right(self, part)
        xp = namespace(lse)
        return part.out * xp.exp(part.reference - lse[..., None]), lse

    patch.setattr(fast.Fast, "finish", finish)
