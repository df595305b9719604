"""The clauses of the specification that the suite judges, one sentence each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Level = Literal["REQUIRED", "EXTENDED"]


@dataclass(frozen=True)
class Clause:
    """REQUIRED binds every backend and kernel; EXTENDED binds the portable implementation."""

    identifier: str
    level: Level
    sentence: str


_REQUIRED = {
    "SHAPE-1": "Axes, dtypes and devices that do not fit together raise before any arithmetic, with the numbers.",
    "SHAPE-2": "E is free, any axis may be empty, D = 0 has scale 1, and rank 2 is one head without batch.",
    "SHAPE-3": "Half types are computed in float32 or wider, float64 stays float64, other dtypes are refused.",
    "SHAPE-4": "Strides and writability do not matter, and inputs are never written to.",
    "SCORE-1": "Scores are scale * (q . k), scale D**-0.5 unless given; every finite scale is legal.",
    "SCORE-2": "The product does not overflow in half types where the scaled score fits float32.",
    "SCORE-3": "Query head h reads key/value head h // (H // G).",
    "SCORE-4": "The order is scale, softcap, bias, mask, softmax with sink, dropout, times v.",
    "SCORE-5": "A bias is float and added; -inf in it masks, every finite number in it is only a number.",
    "MASK-1": "A mask is boolean, True = may attend; integer and float masks are refused.",
    "MASK-2": "A mask broadcasts from the right to (..., H, Q, K) and is never padded.",
    "MASK-3": "Masks compose by and, or, not, and nothing is ignored because something else was given.",
    "MASK-4": "causal(offset) shows key j to query i iff j <= i + offset; window counts from i + offset.",
    "MASK-5": "A query with no visible key has output exactly 0, weights 0 and lse -inf.",
    "MASK-6a": "Finite numbers at masked pairs change no bit of output, lse or weights.",
    "MASK-7": "A visible non-finite q, k or v makes exactly the rows that see it NaN.",
    "SOFTMAX-1": "No representable score overflows, equal scores give uniform weights, +inf scores give NaN.",
    "SOFTMAX-2": "A sink is one more logit per query head in the denominator only.",
    "SOFTMAX-3": "lse is the natural logarithm of the sum over visible keys and sink, before dropout.",
    "SOFTMAX-4": "Weights are per head, before dropout, and sum to 1, less the sink's share, or 0.",
    "SOFTMAX-5": "Merged parts over any partition of the keys equal the undivided call.",
    "DROPOUT-1": "0 <= rate <= 1; rate 1 gives exact zeros; rate 0 and None are the identity.",
    "DROPOUT-2": "Kept entries are scaled by 1/(1-rate), independently for every (batch, head, query, key).",
    "DROPOUT-3": "The keep-mask is random.bernoulli over the whole index space: Threefry-2x32-20, JAX's layout.",
    "NORM-1": "layer_norm has population variance after centring and eps inside the root, in float32 or wider.",
    "NORM-2": "Post-norm is layer_norm(x + dropout(y)), pre-norm x + dropout(sublayer(layer_norm(x))).",
    "MULTIHEAD-1": "Multi-head attention projects, attends per head with scale D**-0.5, concatenates, projects.",
    "MULTIHEAD-2": "A layer maps (..., Q, M) to (..., Q, M) at any length.",
    "MULTIHEAD-3": "Cross-attention, grouped heads, cache, per-head output and weights work together.",
    "MULTIHEAD-4": "Prefill and any split of decode steps equal the one-shot call; overflow raises or is NaN.",
    "PATH-1": "What was asked for besides the output, tiles, implementation, jit and batching do not matter.",
    "PATH-2": "A kernel that rounds the weights once to half says so and is judged with that unit.",
    "ERROR-1": "Every refusal is an attnspec.errors type with shapes and the way out.",
    "ERROR-2": "A missing backend says what to install, an unknown one lists those that exist.",
}

_EXTENDED = {
    "MASK-6b": "NaN and infinity at masked pairs change no bit of output, lse or weights.",
    "MASK-6c": "Garbage at masked pairs changes no bit of any gradient; keys that nobody sees get exactly 0.",
    "GRADIENT-1": "Gradients of attention are those of the formulas: q, k, v, bias, sink, scale, softcap, rate.",
    "GRADIENT-2": "Gradients of the other components, of inputs and parameters, are those of their formulas.",
    "GRADIENT-3": "The gradient of dropout goes through the very entries that the forward pass kept.",
    "GRADIENT-4": "By every route the gradients are the same, and recording them changes no bit of the answer.",
    "GRADIENT-5": "NaN goes to exactly dq of the rows that see it and dk, dv of the keys that those rows see.",
    "REPRO-1": "Reproducible mode has one answer to the bit: on every backend, however a call is cut and compiled.",
    "REPRO-2": "Reproducible mode is the default mode within 1 unit of 2^-24 sum p|v|, before the last rounding.",
    "SHARD-1": "Divided among any number of workers, a call has its undivided answer.",
    "SHARD-2": "In every shard masks, biases, sinks and dropout are those of the undivided call.",
    "SHARD-3": "What a row may not see shows from no shard; NaN reaches the rows that see it, rows may see no shard.",
    "SHARD-4": "Gradients of a divided call are those of the undivided one.",
    "SHARD-5": "Where it is promised, no bit depends on the number of workers.",
    "GRADIENT-6": "A pullback has the arguments' structure, zeros for what is unused, None for what is no float.",
    "FEEDFORWARD-1": "The network is activation(x W_in + b_in) W_out + b_out, gated or not; gelu is exact, by erf.",
    "LOSS-1": "cross_entropy is log(sum exp(logits)) - logits_label, and 0 with its gradient where its mask is False.",
}

CLAUSES: dict[str, Clause] = {
    **{name: Clause(name, "REQUIRED", sentence) for name, sentence in _REQUIRED.items()},
    **{name: Clause(name, "EXTENDED", sentence) for name, sentence in _EXTENDED.items()},
}
