import sys

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

print("torch", torch.__version__)
query = torch.tensor([[[[float("nan"), 0.0], [1.0, 0.0]]]])  # the first of two queries is NaN
key = value = torch.tensor([[[[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]]])
out = scaled_dot_product_attention(query, key, value)
formula = torch.softmax(query @ key.transpose(-2, -1) / 2**0.5, dim=-1) @ value
with sdpa_kernel(SDPBackend.MATH):
    math = scaled_dot_product_attention(query, key, value)
print("by default:      ", out[0, 0, 0].tolist())
print("SDPBackend.MATH: ", math[0, 0, 0].tolist())
print("right, as written in the documentation:", formula[0, 0, 0].tolist())
sys.exit(int(not out[0, 0, 0].isnan().all()))
