"""Wrong projections, layers, caches and rotations: MULTIHEAD."""

from __future__ import annotations

from importlib import import_module

import attnspec
from attnspec import block, cache, fast, multihead
from attnspec._compat import namespace, widened

from .registry import breaks

rotary = import_module("attnspec.rotary")  # the package's attribute of this name is the function


@breaks("MULTIHEAD-1", "test_multihead")
def heads_reshaped_and_not_moved(patch):
    moved = multihead.into_heads

    def into_heads(x, w, b):
        y = moved(x, w, b)
        *lead, H, Q, D = y.shape
        xp = namespace(y)
        return xp.reshape(xp.reshape(xp.moveaxis(y, -3, -2), (*lead, Q * H * D)), (*lead, H, Q, D))

    patch.setattr(multihead, "into_heads", into_heads)


@breaks("MULTIHEAD-1", "test_multihead")
def heads_merged_without_moving_back(patch):
    right = multihead.out_of_heads

    def out_of_heads(heads, w, b):
        *lead, H, Q, E = heads.shape
        return right(namespace(heads).moveaxis(namespace(heads).reshape(heads, (*lead, Q, H, E)), -2, -3), w, b)

    patch.setattr(multihead, "out_of_heads", out_of_heads)


def _scale_of(patch, width):
    def scaled(function):
        def attend(q, *arrays, **options):
            options.setdefault("scale", width(q, *arrays) ** -0.5)
            return function(q, *arrays, **options)

        return attend

    for name in ("attention", "attention_weights"):
        patch.setattr(multihead, name, scaled(getattr(multihead, name)))


@breaks("MULTIHEAD-1", "test_multihead")
def scale_of_the_model_width(patch):
    _scale_of(patch, lambda q, *others: q.shape[-1] * q.shape[-3])


@breaks("MULTIHEAD-1", "test_multihead")
def scale_of_the_value_width(patch):
    _scale_of(patch, lambda q, *others: others[-1].shape[-1])


@breaks("MULTIHEAD-1", "test_multihead")
def output_bias_left_out(patch):
    right = multihead.out_of_heads
    patch.setattr(multihead, "out_of_heads", lambda heads, w, b: right(heads, w, None))


@breaks("MULTIHEAD-1", "test_multihead")
def input_biases_left_out(patch):
    right = multihead.into_heads
    patch.setattr(multihead, "into_heads", lambda x, w, b: right(x, w, None))


@breaks("MULTIHEAD-1", "test_multihead")
def widths_that_do_not_fit_cut_to_fit(patch):
    right = multihead.into_heads
    patch.setattr(multihead, "expect", lambda *arguments: None)
    patch.setattr(multihead, "into_heads", lambda x, w, b: right(x[..., : w.shape[0]], w[: x.shape[-1], ...], b))


def _rotary(patch, changed):
    right = rotary.rotary

    def turned(x, positions, **options):
        return right(*changed(x, positions, options), **options)

    patch.setattr(attnspec, "rotary", turned)


@breaks("MULTIHEAD-1", "test_rotary")
def rotary_turns_backwards(patch):
    _rotary(patch, lambda x, positions, options: (x, -positions))


@breaks("MULTIHEAD-1", "test_rotary")
def rotary_counts_from_one(patch):
    _rotary(patch, lambda x, positions, options: (x, positions + 1))


@breaks("MULTIHEAD-1", "test_rotary")
def rotary_pairs_neighbours_always(patch):
    _rotary(patch, lambda x, positions, options: options.update(interleaved=True) or (x, positions))


@breaks("MULTIHEAD-1", "test_rotary")
def rotary_base_ignored(patch):
    _rotary(patch, lambda x, positions, options: (options.pop("base", None) and None) or (x, positions))


@breaks("MULTIHEAD-1", "test_rotary")
def rotary_frequencies_of_the_whole_width(patch):
    right = rotary._cos_sin
    patch.setattr(
        rotary, "_cos_sin", lambda positions, base, width, xp, like: right(positions, base**0.5, width, xp, like)
    )


@breaks("MULTIHEAD-1", "test_rotary")
def rotary_angle_in_float32(patch):
    def cos_sin(positions, base, width, xp, like):
        turns = xp.asarray([base ** (-2 * n / width) for n in range(width // 2)], dtype=like.dtype)
        angle = xp.astype(positions, like.dtype)[..., None] * turns
        return xp.cos(angle), xp.sin(angle)

    patch.setattr(rotary, "_cos_sin", cos_sin)


@breaks("MULTIHEAD-2", "test_multihead")
def padded_rows_cut_off(patch):
    """PD-02: the output is as long as the longest sequence and not as the input."""
    whole = attnspec.transformer_stack

    def transformer_stack(params, x, *, mask=None, **options):
        y = whole(params, x, mask=mask, **options)
        return y if mask is None else y[..., :3, :]

    patch.setattr(attnspec, "transformer_stack", transformer_stack)


@breaks("MULTIHEAD-2", "test_multihead")
def orders_of_a_layer_swapped(patch):
    right = block._skip
    patch.setattr(block, "_skip", lambda norm, x, y, dropout, pre: right(norm, x, y, dropout, not pre))


@breaks("MULTIHEAD-2", "test_multihead")
def every_layer_of_a_stack_is_the_first(patch):
    right = attnspec.StackParams.init.__func__

    def init(cls, rng, *, depth, order, **layer):
        made = right(cls, rng, depth=depth, order=order, **layer)
        return cls((made.layers[0],) * depth, made.norm)

    patch.setattr(attnspec.StackParams, "init", classmethod(init))


@breaks("MULTIHEAD-3", "test_multihead")
def weights_averaged_over_heads(patch):
    by_head = attnspec.multi_head_weights

    def multi_head_weights(*arguments, **options):
        weights = by_head(*arguments, **options)
        return namespace(weights).mean(weights, axis=-3)

    patch.setattr(attnspec, "multi_head_weights", multi_head_weights)


def _lost(patch, option):
    attend = multihead.attention

    def attention(*arrays, **options):
        options.pop(option, None)
        return attend(*arrays, **options)

    patch.setattr(multihead, "attention", attention)


@breaks("MULTIHEAD-3", "test_multihead")
def bias_lost_on_the_way_to_the_heads(patch):
    _lost(patch, "bias")


@breaks("MULTIHEAD-3", "test_multihead")
def sink_lost_on_the_way_to_the_heads(patch):
    _lost(patch, "sink")


@breaks("MULTIHEAD-3", "test_multihead")
def dropout_lost_on_the_way_to_the_heads(patch):
    _lost(patch, "dropout")


@breaks("MULTIHEAD-3", "test_multihead")
def values_of_the_queries_side(patch):
    """Cross-attention that takes keys from the context and values from x."""
    right = attnspec.multi_head_attention

    def multi_head_attention(params, x, context=None, **options):
        if context is not None and context.shape[-1] != x.shape[-1]:
            rows = namespace(x).concat([x] * 2, axis=-2)[..., : context.shape[-2], : context.shape[-1]]
            q = multihead.into_heads(x, params.wq, params.bq)
            k = multihead.into_heads(context, params.wk, params.bk)
            v = multihead.into_heads(rows, params.wv, params.bv)
            return multihead.out_of_heads(attnspec.attention(q, k, v, **options), params.wo, params.bo)
        return right(params, x, context, **options)

    patch.setattr(attnspec, "multi_head_attention", multi_head_attention)


@breaks("MULTIHEAD-4", "test_cache")
def rows_past_the_end_overwrite_the_last(patch):
    """What a clamped update of a slice does."""
    append = cache.Cache.append

    def clamped(self, k, v):
        if isinstance(self.length, int):
            self = cache.Cache(self.k, self.v, min(self.length, self.capacity - k.shape[-2]))
        return append(self, k, v)

    patch.setattr(cache.Cache, "append", clamped)


@breaks("MULTIHEAD-4", "test_cache")
def overflow_of_array_lengths_overwrites(patch):
    right = cache._placed

    def placed(old, new, length, fits):
        xp = namespace(old)
        return right(old, new, xp.clip(length, 0, old.shape[-2] - new.shape[-2]), xp.ones_like(fits))

    patch.setattr(cache, "_placed", placed)
    patch.setattr(cache.Cache, "_overflow", lambda self, start, n: None)
    patch.setattr(multihead, "_nan_past_the_end", lambda y, length, trailing: y)


@breaks("MULTIHEAD-4", "test_cache")
def rows_written_one_too_early(patch):
    right = cache._spliced
    patch.setattr(cache, "_spliced", lambda old, new, start: right(old, new, max(0, start - 1)))


@breaks("MULTIHEAD-4", "test_cache")
def steps_that_start_at_position_zero_again(patch):
    patch.setattr(cache.Cache, "positions", lambda self, n: range(n))


@breaks("MULTIHEAD-4", "test_cache")
def steps_one_position_late(patch):
    right = cache.Cache.positions

    def positions(self, n):
        made = right(self, n)
        return range(made.start + 1, made.stop + 1) if isinstance(made, range) else made + 1

    patch.setattr(cache.Cache, "positions", positions)


@breaks("MULTIHEAD-4", "test_cache")
def length_of_the_first_item_for_all(patch):
    right = cache.Cache.positions

    def positions(self, n):
        made = right(self, n)
        return made if isinstance(made, range) or made.ndim < 2 else made[:1, :] + 0 * made

    patch.setattr(cache.Cache, "positions", positions)


@breaks("MULTIHEAD-4", "test_cache")
def tail_of_the_cache_multiplied_by_zero(patch):
    patch.setattr(fast, "_cleaned", lambda xp, x, bad: widened(x))


@breaks("MULTIHEAD-2", "test_multihead")
def rows_of_a_layer_are_added_to_their_neighbours(patch):
    right = block.by_rows

    def by_rows(function, x, *others, **options):
        xp = namespace(x)
        return right(function, x, *(xp.roll(other, 1, axis=-2) for other in others), **options)

    patch.setattr(block, "by_rows", by_rows)


@breaks("MULTIHEAD-2", "test_multihead")
def a_layer_writes_over_what_it_was_given(patch):
    right = block.by_rows
    patch.setattr(
        block, "by_rows", lambda function, x, y, **options: right(lambda y, x: function(x, y), y, x, **options)
    )
