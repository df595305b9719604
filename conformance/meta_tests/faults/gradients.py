"""Wrong derivatives and losses: GRADIENT, FEEDFORWARD, LOSS. Kernels' wrong gradients are among `wrong`."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module

import attnspec
from attnspec import backward, norm
from attnspec._compat import namespace

from .registry import breaks

# The package's attributes of these names are functions.
feed_forward, linear, rotary = (import_module(f"attnspec.{name}") for name in ("feed_forward", "linear", "rotary"))
tape = import_module("attnspec.tape")


def _changed(patch, module, name, change):
    """The gradients that a backward pass returns, changed; by their names."""
    right = getattr(module, name)
    patch.setattr(module, name, lambda *arguments: change(right(*arguments), *arguments))


def _of_rows(patch, change):
    """What attention's walk back knows of each row, changed."""
    right = backward._walk_back
    patch.setattr(
        backward, "_walk_back", lambda request, numerics, rows: right(request, numerics, change(rows, request))
    )


@breaks("GRADIENT-1")
def sum_in_the_denominator_taken_for_a_constant(patch):
    _of_rows(patch, lambda rows, request: rows._replace(delta=0 * rows.delta))


@breaks("GRADIENT-1")
def gradient_of_the_sink_left_out(patch):
    def without(gradients, request, numerics, rows):
        return gradients | ({"sink": 0 * gradients["sink"]} if "sink" in gradients else {})

    _changed(patch, backward, "_walk_back", without)


@breaks("GRADIENT-1")
def gradient_of_the_scale_of_unscaled_scores(patch):
    def doubled(gradients, request, numerics, rows):
        return gradients | ({"scale": gradients["scale"] * request.scale} if "scale" in gradients else {})

    _changed(patch, backward, "_walk_back", doubled)


@breaks("GRADIENT-3")
def dropout_forgotten_on_the_way_back(patch):
    right = backward._walk_back
    patch.setattr(
        backward, "_walk_back", lambda request, numerics, rows: right(replace(request, dropout=None), numerics, rows)
    )


@breaks("GRADIENT-3")
def kept_entries_unscaled_on_the_way_back(patch):
    patch.setattr(backward, "kept_scale", lambda option, like: 1.0)


@breaks("GRADIENT-5")
def nan_rows_pass_back_numbers(patch):
    _of_rows(patch, lambda rows, request: rows._replace(bad=None))


@breaks("GRADIENT-2")
def norm_that_takes_its_mean_for_a_constant(patch):
    patch.setattr(norm, "layer_norm_backward", norm.rms_norm_backward)


@breaks("GRADIENT-2")
def weights_of_a_linear_map_get_the_mean(patch):
    def mean(gradients, operands, results, cotangents):
        rows = max(1, cotangents[0].size // max(1, cotangents[0].shape[-1]))
        return gradients | {"1": gradients["1"] / rows}

    _changed(patch, linear, "linear_backward", mean)


@breaks("GRADIENT-2")
def rotation_passed_back_forwards(patch):
    def forwards(operands, results, cotangents):
        return {"0": rotary._turned((cotangents[0], *operands[1:]))[0]}

    patch.setattr(rotary, "rotary_backward", forwards)


@breaks("GRADIENT-4")
def recording_changes_the_answer(patch):
    right = attnspec.vjp

    def vjp(function, *arguments):
        results, pullback = right(function, *arguments)
        parts = results if isinstance(results, tuple) else (results,)
        moved = tuple(x * (1 + 2.0**-20) for x in parts)
        return moved if isinstance(results, tuple) else moved[0], pullback

    patch.setattr(attnspec, "vjp", vjp)


@breaks("GRADIENT-6")
def nothing_for_what_is_unused(patch):
    patch.setattr(tape, "_zeros_like", lambda x: None)


@breaks("FEEDFORWARD-1")
def gelu_by_its_approximation(patch):
    for table in (feed_forward._ACTIVATIONS, feed_forward._OVER):
        patch.setitem(table, "gelu", feed_forward.gelu_tanh)


@breaks("LOSS-1")
def loss_of_masked_labels_kept(patch):
    right = attnspec.cross_entropy
    patch.setattr(attnspec, "cross_entropy", lambda logits, labels, *, mask=None: right(logits, labels))


@breaks("LOSS-1")
def loss_in_bits(patch):
    right = attnspec.cross_entropy

    def cross_entropy(logits, labels, *, mask=None):
        loss = right(logits, labels, mask=mask)
        return loss / namespace(loss).log(namespace(loss).asarray(2.0, dtype=loss.dtype))

    patch.setattr(attnspec, "cross_entropy", cross_entropy)
