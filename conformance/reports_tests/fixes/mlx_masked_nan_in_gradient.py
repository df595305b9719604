"""A key that nobody may see is replaced before it is multiplied."""

import mlx.core as mx

attention = mx.fast.scaled_dot_product_attention


def cleaned(query, key, value, *, scale, mask=None):
    if mask is not None:
        key = mx.where(mask[:, None], key, 0)
    return attention(query, key, value, scale=scale, mask=mask)


mx.fast.scaled_dot_product_attention = cleaned
