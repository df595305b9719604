import sys

import torch
from torch.nn.functional import scaled_dot_product_attention

print("torch", torch.__version__)
query = torch.ones(1, 1, 1, 4)
value = torch.arange(8.0).reshape(1, 1, 8, 1).expand(1, 1, 8, 4).contiguous()
answered = 0
for behind, length in ((5.0, 8), (-5.0, 8), (5.0, 2)):
    memory = torch.zeros(1, 1, 8, 4)
    memory[:, :, 4:] = behind  # what lies behind the keys is ours, so that reading it is safe
    key = memory[:, :, :4]
    try:
        out = scaled_dot_product_attention(query, key, value[:, :, :length])
        print(f"4 keys of 0, {behind} behind them, {length} values: {out[0, 0, 0, 0]:.4f}; right: an error")
        answered += 1
    except (RuntimeError, ValueError) as error:
        print(f"4 keys of 0, {behind} behind them, {length} values: {type(error).__name__}")
sys.exit(int(answered > 0))
