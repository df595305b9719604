"""The lengths are compared before any kernel is chosen."""

from torch.nn import functional

sdpa = functional.scaled_dot_product_attention


def checked(query, key, value):
    if key.shape[-2] != value.shape[-2]:
        raise ValueError(f"key has {key.shape[-2]} places, value {value.shape[-2]}")
    return sdpa(query, key, value)


functional.scaled_dot_product_attention = checked
