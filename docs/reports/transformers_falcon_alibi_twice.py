import sys

import torch
import transformers
from transformers import FalconConfig, FalconModel

transformers.logging.set_verbosity_error()
print("transformers", transformers.__version__, "torch", torch.__version__)
tokens, models = torch.arange(3)[None], {}
for implementation in ("sdpa", "eager"):
    torch.manual_seed(0)
    config = FalconConfig(vocab_size=12, hidden_size=4, num_attention_heads=2, num_hidden_layers=1, alibi=True)
    models[implementation] = FalconModel._from_config(config, attn_implementation=implementation).eval()
    torch.nn.init.normal_(models[implementation].h[0].self_attention.query_key_value.weight)
    models[implementation].h[0].self_attention.query_key_value.weight.data[:4] = 0  # queries of 0: ALiBi alone decides
sdpa, eager = (model(tokens).last_hidden_state[0, -1] for model in models.values())
weights = models["eager"](tokens, output_attentions=True).attentions[0][0, :, -1]
right = torch.softmax(torch.tensor([[2.0**-4], [2.0**-8]]) * torch.arange(3) / 2**0.5, dim=-1)  # slope * j / sqrt(D)
print("last token, sdpa: ", [round(x, 4) for x in sdpa.tolist()])
print("last token, eager:", [round(x, 4) for x in eager.tolist()])
print("weights of its first head:", [round(x, 4) for x in weights[0].tolist()])
print("right:                    ", [round(x, 4) for x in right[0].tolist()])
sys.exit(int(not torch.allclose(weights, right, atol=1e-4)))
