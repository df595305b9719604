"""A rate that is no probability is refused."""

import equinox as eqx

layer = eqx.nn.MultiheadAttention


def validated(*args, dropout_p, **kwargs):
    if not 0 <= dropout_p <= 1:
        raise ValueError(f"dropout_p is a probability, not {dropout_p}")
    return layer(*args, dropout_p=dropout_p, **kwargs)


eqx.nn.MultiheadAttention = validated
