"""Faults that were shipped, each as a law against its whole kind.

The identifier in a name is that of the recipe; the docstring names the public report of the fault. The right values
stand as literals, so that these laws judge the oracle too.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from .. import masks
from ..judges import Judge, both, is_exactly, is_value, refused, same_bits, within_bound
from ..masks import Array
from ..problems import beyond_a_tile, constant, normal, problem, some_mask, uniform_values
from ..trials import Call, Result, Trial, Verdict, law

EYE: Array = np.eye(2, dtype=np.float32)
V22: Array = np.array([[1, 2], [3, 4]], np.float32)
INT = np.int32

HIGH, LOW = 1.6604769013466862, 2.3395230986533138


def column(*values: float) -> Array:
    return np.array(values, np.float64)[:, None]


@law("MASK-1")
def ms_01_true_is_not_blocked() -> Iterator[Trial]:
    """rasbt/LLMs-from-scratch#1061."""
    call = uniform_values([1, 2, 4, 8], Q=4)
    wanted = column(1, 1.5, 7 / 3, 3.75)
    for mask in (masks.Dense(np.tri(4, dtype=bool)), masks.Causal()):
        asked = call.but(mask=mask)
        yield Trial((asked,), is_value(asked, out=wanted))


@law("MASK-1")
def ms_02_lengths_count_the_visible_keys() -> Iterator[Trial]:
    """NVIDIA/TransformerEngine#614."""
    call = uniform_values([1, 2, 6, 100], Q=1)
    for mask in (masks.Dense(np.array([True, True, True, False])), masks.Padding(np.array(3, INT))):
        asked = call.but(mask=mask)
        yield Trial((asked, uniform_values([1, 2, 6], Q=1)), both(same_bits(), _first_is(asked, column(3))))


@law("SCORE-5")
def ms_03_a_padding_bias_of_zero_and_minus_infinity_is_a_mask() -> Iterator[Trial]:
    """pytorch/pytorch#92554."""
    k, v = np.array([[1, 0], [0, 2], [5, 5]], np.float32), np.array([[1], [3], [1000]], np.float32)
    call = Call(constant(1, 2, 2), k, v)
    by_bias = call.but(bias=np.array([0, 0, -np.inf], np.float32))
    by_mask = call.but(mask=masks.Dense(np.array([True, True, False])))
    yield Trial((by_bias, by_mask), both(same_bits(), _first_is(by_bias, column(LOW, LOW))))


@law("MASK-2")
def ms_05_a_padding_mask_belongs_to_its_own_batch_where_heads_are_as_many() -> Iterator[Trial]:
    """lsdefine/attention-is-all-you-need-keras#36."""
    v = np.broadcast_to(np.array([[1], [9]], np.float32), (2, 2, 2, 1))
    call = Call(constant(0, 2, 2, 1, 1), constant(0, 2, 2, 2, 1), np.ascontiguousarray(v))
    wanted = np.array([[1.0, 1.0], [5.0, 5.0]])[..., None, None]
    seen = np.array([[True, False], [True, True]])[:, None, None, :]
    for mask in (masks.Dense(seen), masks.Padding(np.array([1, 2], INT))):
        yield Trial((call.but(mask=mask),), is_exactly(out=wanted))


@law("MASK-3", "PATH-1")
def ms_06_masks_that_vary_over_every_axis_survive_chunks() -> Iterator[Trial]:
    """google-research/tabfm#40."""
    sparse = some_mask(0, 513, 525, share=0.05)
    biased = beyond_a_tile(mask=sparse, bias=normal(4, 513, 525))
    yield Trial((biased,), within_bound(biased))


@law("MASK-4")
def ca_01_causal_says_which_corner_it_starts_from() -> Iterator[Trial]:
    """pytorch/pytorch#103082."""
    for Q, align, wanted in (
        (1, "start", column(0)),
        (1, "end", column(1.5)),
        (2, "start", column(0, 0.5)),
        (2, "end", column(1, 1.5)),
    ):
        call = uniform_values([0, 1, 2, 3], Q=Q, mask=masks.Causal(align=align))  # type: ignore[arg-type]
        yield Trial((call,), is_value(call, out=wanted))


@law("MASK-4")
def ca_03_the_triangle_starts_after_the_past_keys() -> Iterator[Trial]:
    """tinygrad/tinygrad#15949."""
    call = uniform_values([0, 1, 2, 3], Q=2, mask=masks.Causal(2))
    yield Trial((call,), is_value(call, out=column(1, 1.5)))
    sequence = problem(3, Q=7, mask=masks.Causal())
    for past in (1, 2, 6):
        step = sequence.but(q=sequence.q[..., past:, :], mask=masks.Causal(past))
        yield Trial((step,), within_bound(step))


@law("MASK-3", "MASK-5")
def ca_05_left_padding_is_hidden_from_the_causal_future() -> Iterator[Trial]:
    """ml-explore/mlx-lm#1906."""
    x = np.array([[7, 7], [7, 7], [1, 0], [0, 1]], np.float32)
    v = np.array([[50], [60], [1], [3]], np.float32)
    for real in (
        masks.Dense(np.array([False, False, True, True])),
        masks.Inverse(masks.Padding(np.array(2, INT))),
    ):
        call = Call(x, x, v, mask=masks.Both(masks.Causal(), real))
        yield Trial((call,), is_value(call, out=column(0, 0, 1, LOW)))


@law("MASK-5")
def fm_01_an_empty_row_is_zero_however_it_is_spelled() -> Iterator[Trial]:
    """pytorch/pytorch#103749."""
    seen = np.array([[True, True], [False, False]])
    call = Call(EYE, EYE, V22)
    wanted = np.array([[HIGH, HIGH + 1], [0, 0]])
    for options in (
        {"mask": masks.Dense(seen)},
        {"bias": np.where(seen, 0, -np.inf).astype(np.float32)},
        {"mask": masks.Causal(np.array(-2, INT)), "q_positions": np.array([3, 1], INT)},
        {"mask": masks.Segments(np.array([1, 2], INT), np.array([1, 1], INT))},
    ):
        asked = call.but(**options)
        yield Trial((asked,), is_value(asked, out=wanted))


@law("SCORE-5")
def fm_01_the_lowest_number_added_is_no_mask() -> Iterator[Trial]:
    """pytorch/pytorch#103963."""
    lowest = float(np.finfo(np.float32).min)
    call = uniform_values([2, 4], Q=1, bias=constant(lowest, 1, 2))
    yield Trial((call,), is_exactly(out=constant(3, 1, 1)))


@law("MASK-5")
def fm_04_a_sequence_of_length_zero_is_an_empty_row() -> Iterator[Trial]:
    """jax-ml/jax#23349."""
    v = np.ascontiguousarray(np.broadcast_to(np.array([[1], [2], [4]], np.float32), (2, 1, 3, 1)))
    call = Call(constant(0, 2, 1, 3, 1), constant(0, 2, 1, 3, 1), v, mask=masks.Padding(np.array([0, 2], INT)))
    yield Trial((call,), is_exactly(out=np.array([0, 1.5])[:, None, None, None] * constant(1, 2, 1, 3, 1)))


@law("MASK-6b")
def nl_01_poison_in_hidden_keys_and_values_stays_there() -> Iterator[Trial]:
    """pytorch/pytorch#101967."""
    mask = masks.Dense(np.array([True, False]))
    for bad in (np.nan, np.inf, -np.inf, 1e30):
        for name, x in (("k", EYE), ("v", V22)):
            for e in range(2):
                poisoned = x.copy()
                poisoned[1, e] = bad
                call = Call(EYE, EYE, V22, mask=mask).but(**{name: poisoned})
                yield Trial((call,), is_exactly(out=np.array([[1.0, 2.0], [1.0, 2.0]])))


@law("MASK-6b")
def nl_02_the_unused_tail_of_a_cache_is_not_read() -> Iterator[Trial]:
    """Lightning-AI/litgpt#2248."""
    k, v = constant(np.nan, 6, 2), constant(np.nan, 6, 1)
    k[:3], v[:3] = [[1, 0], [0, 1], [1, 1]], [[1], [2], [4]]
    call = Call(np.array([[1, 2]], np.float32), k, v, mask=masks.Padding(np.array(3, INT)))
    yield Trial((call,), is_value(call, out=column(3.0119214463873457)))


@law("SCORE-2", needs=("float16",))
def lp_01_float16_scores_do_not_overflow_before_scaling() -> Iterator[Trial]:
    """pytorch/pytorch#119131."""
    for size in (64.0, 256.0):
        call = problem(2, D=64, K=5, dtype="float16")
        large = call.but(q=constant(size, *call.q.shape), k=call.k * np.float16(size), want="lse")
        yield Trial((large,), within_bound(large))


@law("MASK-3", "MASK-5", needs=("float16",))
def lp_02_two_masks_never_add_up_to_a_number() -> Iterator[Trial]:
    """huggingface/transformers#17306."""
    pad = np.array([False, True])
    for dtype in ("float32", "float16"):
        call = Call(EYE, EYE, np.array([[1], [3]], np.float32), dtype=dtype)
        by_mask = call.but(mask=masks.Both(masks.Causal(), masks.Dense(pad)))
        by_both = call.but(mask=masks.Causal(), bias=np.where(pad, 0, -np.inf).astype(np.float32))
        for asked in (by_mask, by_both):
            yield Trial((asked,), is_exactly(out=column(0, 3)))


@law("SOFTMAX-1", needs=("bfloat16",))
def lp_04_equal_keys_give_back_the_value_at_any_length() -> Iterator[Trial]:
    """tinygrad/tinygrad#12280."""
    for keys in (300, 1500):
        call = Call(constant(0, 1, 4), constant(0, keys, 4), constant(1, keys, 1), dtype="bfloat16")
        yield Trial((call,), is_value(call, out=column(1)))


@law("SCORE-3")
def hd_01_query_heads_read_repeated_and_not_tiled_heads() -> Iterator[Trial]:
    """onnx/onnx#7274."""
    for G, values in ((2, [10, 20]), (3, [10, 20, 30])):
        v = np.array(values, np.float32)[:, None, None]
        call = Call(constant(0, 2 * G, 1, 1), constant(0, G, 1, 1), v)
        yield Trial((call,), is_exactly(out=np.repeat(v, 2, 0)))
    yield Trial((problem(H=5, G=2),), refused("H=5", "G=2"))


@law("SCORE-1")
def hd_03_the_scale_is_of_the_head_and_not_of_the_model() -> Iterator[Trial]:
    """karpathy/ng-video-lecture#6."""
    k = np.array([[1, 1, 1, 1], [0, 0, 0, 0]], np.float32)
    call = Call(constant(1, 4, 1, 4), np.stack([k] * 4), np.stack([np.array([[1], [0]], np.float32)] * 4))
    yield Trial((call,), is_value(call, out=np.full((4, 1, 1), 0.8807970779778823)))


@law("DROPOUT-1")
def do_01_without_a_rate_nothing_is_random() -> Iterator[Trial]:
    """pytorch/pytorch#124464."""
    call = Call(EYE, EYE, V22)
    wanted = np.array([[HIGH, HIGH + 1], [LOW, LOW + 1]])
    yield Trial((call, call, call.but(dropout=masks.Dropout(0.0, 1))), both(same_bits(), _first_is(call, wanted)))


@law("SOFTMAX-4", "DROPOUT-2")
def do_02_weights_are_those_before_dropout() -> Iterator[Trial]:
    """pytorch/pytorch#42929."""
    one = Call(constant(0, 64, 1), constant(0, 1, 1), constant(1, 1, 1), want="weights")
    yield Trial((one,), is_exactly(weights=constant(1, 64, 1)))
    dropped = one.but(want="lse", dropout=masks.Dropout(0.2, 3))
    yield Trial((dropped,), both(_only(0.0, 1.25), is_value(dropped, lse=constant(0, 64))))
    asked = dropped.but(want="weights")
    yield Trial((asked,), is_exactly(weights=constant(1, 64, 1)))


@law("MASK-4")
def bw_01_a_window_counts_the_keys_before_and_after() -> Iterator[Trial]:
    """huggingface/transformers#39408."""
    call = uniform_values([1, 2, 4, 8], Q=4)
    for left, wanted in ((1, column(1, 1.5, 3, 6)), (2, column(1, 1.5, 7 / 3, 14 / 3))):
        asked = call.but(mask=masks.Window(left, 0))
        yield Trial((asked,), is_value(asked, out=wanted))
    for width in (1, 3, 6):
        counted = Call(constant(0, 7, 1), constant(0, 7, 1), np.eye(7, dtype=np.float32))
        asked = counted.but(mask=masks.Window(width - 1, 0))
        yield Trial((asked,), within_bound(asked))


@law("SCORE-4")
def bw_03_softcap_does_not_bring_masked_keys_back() -> Iterator[Trial]:
    """onnx/onnx#7865."""
    bias = np.array([[0, -np.inf], [0, 0]], np.float32)
    call = Call(EYE, EYE, V22, bias=bias, softcap=2.0)
    wanted = np.array([[1, 2], [2.3270515705805708, 3.3270515705805708]])
    yield Trial((call,), is_value(call, out=wanted))
    for cap in (1e-3, 1.0, 50.0):
        weights = call.but(softcap=cap, want="weights")
        yield Trial((weights,), within_bound(weights))


@law("SOFTMAX-2")
def bw_05_softmax_plus_one_keeps_its_one_after_the_maximum() -> Iterator[Trial]:
    """kyegomez/AttentionIsOFFByOne#5."""
    call = Call(
        constant(1, 1, 1), constant(-10, 2, 1), constant(1, 2, 1), scale=1.0, sink=np.float32(0)
    )  # fmt: skip
    yield Trial((call,), is_value(call, out=column(9.079161565902183e-05)))


@law("SHAPE-1")
def sh_01_keys_and_values_of_other_lengths_are_refused() -> Iterator[Trial]:
    """pytorch/pytorch#193728."""
    for keys, values in ((5, 6), (6, 5), (0, 1), (1, 0), (1, 5), (5, 1)):
        call = Call(constant(0, 3, 8), constant(0, keys, 8), constant(0, values, 8))
        yield Trial((call,), refused(f"K={keys}", f"K={values}"))


@law("SHAPE-2")
def sh_03_empty_axes_follow_the_definition() -> Iterator[Trial]:
    """pytorch/pytorch#141218."""
    yield Trial((Call(constant(1, 2, 4), constant(1, 0, 4), constant(1, 0, 3)),), is_exactly(out=constant(0, 2, 3)))
    yield Trial((Call(constant(1, 0, 4), constant(1, 3, 4), constant(1, 3, 2)),), is_exactly(out=constant(0, 0, 2)))
    no_width = uniform_values([1, 2, 6], Q=2)
    no_width = no_width.but(q=no_width.q[:, :0], k=no_width.k[:, :0])
    yield Trial((no_width,), is_value(no_width, out=column(3, 3)))
    yield Trial((problem(lead=(0,), Q=2, K=3, E=5),), is_exactly(out=constant(0, 0, 6, 2, 5)))


@law("SHAPE-1", "PATH-1")
def sh_05_batch_items_do_not_see_each_other() -> Iterator[Trial]:
    """A troubleshooting page on sequence-first attention modules, 2025."""
    call = problem(4)
    other = call.but(**{name: getattr(call, name).copy() for name in "qkv"})
    for x in (other.q, other.k, other.v):
        x[1] += 1
    yield Trial((call, other), _same_items(1))


@law("SCORE-5", "MASK-1")
def pd_01_a_float_mask_is_a_bias_in_every_mode() -> Iterator[Trial]:
    """pytorch/pytorch#107084."""
    call = uniform_values([1, 3, 8], Q=1, bias=np.array([0, 0, 1], np.float32))
    dropped = call.but(dropout=masks.Dropout(0.0, 1))
    yield Trial((call, dropped), both(same_bits(), _first_is(call, column(5.456701308594974))))
    by_mask = uniform_values([1, 3, 8], Q=1, mask=masks.Dense(np.array([True, True, False])))
    yield Trial((by_mask,), is_exactly(out=constant(2, 1, 1)))


@law("MASK-3", "SHAPE-2")
def pd_02_padded_queries_keep_their_rows() -> Iterator[Trial]:
    """pytorch/pytorch#97111."""
    x = np.array([[1, 0], [0, 1], [2, 2], [3, 1]], np.float32)
    call = Call(x, x, x, mask=masks.Dense(np.array([True, True, False, False])))
    a, b = 0.6697615493266569, 0.3302384506733431
    c, d = 0.8044296825069569, 0.19557031749304313
    yield Trial((call,), is_value(call, out=np.array([[a, b], [b, a], [0.5, 0.5], [c, d]])))


@law("MASK-3")
def pd_04_a_mask_beside_causal_is_their_intersection() -> Iterator[Trial]:
    """jingyaogong/minimind#497."""
    dense = masks.Dense(np.array([[1, 1, 1], [0, 1, 1], [1, 0, 1]], bool))
    for mask in (masks.Both(masks.Causal(), dense), masks.Both(dense, masks.Causal())):
        call = uniform_values([1, 2, 4], Q=3, mask=mask)
        yield Trial((call,), is_exactly(out=column(1, 2, 2.5)))


def _first_is(call: Call, wanted: Array) -> Judge:
    judge = is_value(call, out=wanted)
    return lambda results: judge(results[:1])


def _only(*values: float) -> Judge:
    def judge(results: tuple[Result, ...]) -> Verdict:
        out = results[0].out
        found: list[float] = sorted(set(np.ravel(out).tolist())) if out is not None else []
        return Verdict(found == sorted(map(float, values)), f"out has the values {found}, wanted {values}")

    return judge


def _same_items(count: int) -> Judge:
    def judge(results: tuple[Result, ...]) -> Verdict:
        one, other = (Result(out=None if r.out is None else r.out[:count], error=r.error) for r in results)
        return same_bits("out")((one, other))

    return judge
