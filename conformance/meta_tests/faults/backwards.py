"""More wrong derivatives: of attention's walk back over tiles, of bias terms, of components, and of the tape."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module

from attnspec import backward, embedding, fast, gradients, loss, norm, positional, random, tape_rules, terms
from attnspec._compat import namespace
from attnspec.struct import arrays_in

from .registry import breaks

attention = import_module("attnspec.attention")  # the package's attribute of this name is the function


def _walk(patch, before=None, after=None):
    """Attention's backward pass: what it is given, or what it returns, changed."""
    right = attention.attend_backward

    def attend_backward(saved, fast):
        found = right(saved if before is None else before(*saved), fast)
        return found if after is None else found | after(saved[0], found)

    patch.setattr(attention, "attend_backward", attend_backward)


@breaks("GRADIENT-1")
def scale_forgotten_in_the_gradient_of_keys(patch):
    _walk(patch, after=lambda request, found: {"k": found["k"] / request.scale})


@breaks("GRADIENT-1")
def cotangent_of_lse_ignored(patch):
    _walk(patch, before=lambda request, results, given: (request, results, (given[0], 0 * given[1], *given[2:])))


@breaks("GRADIENT-1")
def share_of_the_sink_left_in_the_weights(patch):
    def without(request, results, given):
        out, lse, reference, total = results
        if request.sink is None:
            return request, results, given
        own = namespace(total).exp(request.sink[..., None, None] - reference)
        return request, (out, lse, reference, total - own), given

    _walk(patch, before=without)


@breaks("GRADIENT-1")
def slope_of_the_softcap_ignored(patch):
    patch.setattr(fast, "_cap_slope", lambda xp, s, cap: xp.ones_like(s))


@breaks("GRADIENT-1")
def slope_of_the_softcap_without_digits_near_saturation(patch):
    patch.setattr(fast, "_cap_slope", lambda xp, s, cap: 1.0 - xp.tanh(s / cap) ** 2)


@breaks("GRADIENT-1")
def gradient_of_the_last_head_of_a_group(patch):
    right = fast.Fast.matmul_of_keys

    def matmul_of_keys(self, a, b, G):
        H = a.shape[-3]
        last = namespace(a).arange(H) % (H // G) == H // G - 1
        return right(self, namespace(a).where(last[:, None, None], a, 0.0), b, G)

    patch.setattr(fast.Fast, "matmul_of_keys", matmul_of_keys)


@breaks("GRADIENT-1")
def bias_averaged_over_the_axes_it_was_broadcast_along(patch):
    right = terms.summed_to

    def averaged(x, shape):
        summed = right(x, shape)
        return summed * (summed.size / max(1, x.size))

    patch.setattr(terms, "summed_to", averaged)


@breaks("GRADIENT-1")
def table_without_its_outermost_distance(patch):
    right = positional.Relative.pull

    def pull(self, *arguments, **options):
        found = right(self, *arguments, **options)["table"]
        return {"table": found * (namespace(found).arange(found.shape[-1]) > 0)}

    patch.setattr(positional.Relative, "pull", pull)


@breaks("GRADIENT-1")
def slopes_that_grow_the_wrong_way(patch):
    right = positional.Alibi.pull
    patch.setattr(
        positional.Alibi, "pull", lambda self, *a, **options: {n: -x for n, x in right(self, *a, **options).items()}
    )


@breaks("GRADIENT-3")
def dropout_drawn_again_on_the_way_back(patch):
    right = backward.keep_tile
    patch.setattr(
        backward,
        "keep_tile",
        lambda option, *others: right(replace(option, rng=random.fold_in(option.rng, 1)), *others),
    )


@breaks("GRADIENT-3")
def kept_values_get_unscaled_gradients(patch):
    def unscaled(request, found):
        return {} if request.dropout is None else {"v": found["v"] * (1.0 - request.dropout.rate)}

    _walk(patch, after=unscaled)


@breaks("MASK-6c")
def mask_left_to_weights_of_zero_on_the_way_back(patch):
    """0 times the overflowing product with a hidden value."""
    right = backward.masked_scores
    patch.setattr(backward, "masked_scores", lambda *arguments: (right(*arguments)[0], None))


@breaks("GRADIENT-5")
def nan_of_a_query_in_the_gradient_of_its_whole_head(patch):
    def spread(request, found):
        return {"q": found["q"] + 0.0 * namespace(found["q"]).sum(found["q"], axis=-2, keepdims=True)}

    _walk(patch, after=spread)


@breaks("GRADIENT-5")
def nan_of_a_row_kept_from_the_keys_it_sees(patch):
    def numbers(request, found):
        xp = namespace(found["k"])
        return {"k": xp.where(xp.isnan(found["k"]), 0.0, found["k"])}

    _walk(patch, after=numbers)


@breaks("GRADIENT-2")
def norm_without_the_share_of_its_deviation(patch):
    def backwards(operands, results, cotangents):
        (y, over_root), (g, *_) = results, cotangents
        wanted = norm_right(operands, results, cotangents)
        return wanted | {"0": over_root * (g - namespace(y).mean(g, axis=-1, keepdims=True))}

    norm_right = norm.layer_norm_backward
    patch.setattr(norm, "layer_norm_backward", backwards)


@breaks("GRADIENT-2")
def eps_of_a_norm_without_its_half(patch):
    right = norm.rms_norm_backward
    patch.setattr(
        norm,
        "rms_norm_backward",
        lambda *arguments: {n: 2 * x if n == "1" else x for n, x in right(*arguments).items()},
    )


@breaks("GRADIENT-2")
def last_of_equal_tokens_alone_in_the_table(patch):
    def backwards(operands, results, cotangents):
        table, ids = operands
        found = namespace(table).zeros_like(table)
        found[ids] = cotangents[0]
        return {"0": found}

    patch.setattr(embedding, "embed_backward", backwards)


@breaks("GRADIENT-2")
def slope_of_gelu_without_its_density(patch):
    right = gradients.gelu_backward

    def backwards(operands, results, cotangents):
        (x,) = operands
        density = namespace(x).exp(-0.5 * x * x) * 0.3989422804014327
        return {"0": right(operands, results, cotangents)["0"] - cotangents[0] * x * density}

    patch.setattr(gradients, "gelu_backward", backwards)


@breaks("GRADIENT-2")
def bias_of_a_linear_map_from_the_first_row(patch):
    linear = import_module("attnspec.linear")
    right = linear.linear_backward

    def backwards(operands, results, cotangents):
        found = right(operands, results, cotangents)
        if "2" not in found or 0 in cotangents[0].shape:
            return found
        b = operands[2]
        return found | {"2": namespace(b).reshape(cotangents[0], (-1, *b.shape))[0, ...]}

    patch.setattr(linear, "linear_backward", backwards)


@breaks("FEEDFORWARD-1")
def slope_of_relu_at_zero(patch):
    patch.setattr(
        gradients,
        "relu_backward",
        lambda operands, results, given: {"0": namespace(operands[0]).where(operands[0] < 0, 0.0, given[0])},
    )


@breaks("LOSS-1")
def label_left_out_of_the_gradient_of_the_loss(patch):
    def backwards(operands, results, cotangents):
        (logits, _, mask), (_, lse), (g, *_) = operands, results, cotangents
        xp = namespace(logits)
        gradient = g[..., None] * xp.exp(logits - lse[..., None])
        return {"0": gradient if mask is None else xp.where(mask[..., None], gradient, 0.0)}

    patch.setattr(loss, "cross_entropy_backward", backwards)


@breaks("LOSS-1")
def masked_logits_multiplied_by_zero(patch):
    right = loss._losses

    def losses(operands):
        logits, labels, mask = operands
        found, lse = right((logits, labels, None))
        return (found if mask is None else found * mask), lse

    patch.setattr(loss, "_losses", losses)


@breaks("GRADIENT-6")
def mean_pulled_back_as_a_sum(patch):
    right = tape_rules.RULES["mean"]

    def mean(xp, x, **options):
        y, back = right(xp, x, **options)
        return y, lambda g: tuple(part * (x.size / max(1, y.size)) for part in back(g))

    patch.setitem(tape_rules.RULES, "mean", mean)


@breaks("GRADIENT-6")
def a_fixed_argument_gets_a_gradient(patch):
    """Integers too, where None belongs."""
    tape = import_module("attnspec.tape")
    right = tape.vjp

    def vjp(function, *arguments):
        result, pullback = right(function, *arguments)

        def pulled(cotangent=None):
            whole, found = arrays_in("", arguments), arrays_in("", pullback(cotangent))
            return tape.with_arrays(
                "", arguments, {n: found.get(n, namespace(x).zeros_like(x)) for n, x in whole.items()}
            )

        return result, pulled

    patch.setattr("attnspec.vjp", vjp)


@breaks("MASK-6c", "test_gradient_masking")
def what_a_scale_made_infinite_meets_weights_of_0(patch):
    patch.setattr(backward, "_weighed", lambda request, x: x)
