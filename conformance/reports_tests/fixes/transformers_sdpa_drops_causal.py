"""A mask and is_causal are combined."""

import torch
from transformers.integrations import sdpa_attention

forward = sdpa_attention.sdpa_attention_forward


def combined(module, query, key, value, mask, is_causal):
    if mask is not None and is_causal:
        mask = mask & torch.ones(query.shape[2], key.shape[2], dtype=torch.bool).tril()
    return forward(module, query, key, value, mask, is_causal=is_causal)


sdpa_attention.sdpa_attention_forward = combined
