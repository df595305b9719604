import sys

import torch
import transformers
from transformers.integrations.sdpa_attention import sdpa_attention_forward

print("transformers", transformers.__version__, "torch", torch.__version__)
query = key = torch.ones(1, 1, 3, 2)
value = torch.tensor([[1.0, 1.0], [2.0, 2.0], [6.0, 6.0]]).reshape(1, 1, 3, 2)
real = torch.tensor([True, True, True]).reshape(1, 1, 1, 3)  # a padding mask of a sequence without padding
module = torch.nn.Module()
without, _ = sdpa_attention_forward(module, query, key, value, None, is_causal=True)
try:
    with_mask, _ = sdpa_attention_forward(module, query, key, value, real, is_causal=True)
except ValueError as error:
    sys.exit(print("is_causal=True, nothing masked:", error))
both = torch.nn.functional.scaled_dot_product_attention(query, key, value, real.expand(1, 1, 3, 3).tril())
print("is_causal=True, no mask:            ", without[0, :, 0, 0].tolist())
print("is_causal=True, nothing masked:     ", with_mask[0, :, 0, 0].tolist())
print("right, SDPA with both in one mask:  ", both[0, 0, :, 0].tolist())
sys.exit(int(not torch.allclose(with_mask, without)))
