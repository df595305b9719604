"""A rate of 1 gives zeros, as in the Dropout layers."""

from flax import linen, nnx


def zeros(attention):
    def attend(query, key, value, *, dropout_rate, **kwargs):
        return 0 * value if dropout_rate == 1 else attention(query, key, value, dropout_rate=dropout_rate, **kwargs)

    return attend


nnx.dot_product_attention = zeros(nnx.dot_product_attention)
linen.dot_product_attention = zeros(linen.dot_product_attention)
