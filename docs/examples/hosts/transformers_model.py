"""A model of transformers with `attn_implementation="attnspec"`: a tiny Llama of random weights, nothing downloaded.

Needs: pip install 'attnspec[torch]' transformers
"""

import copy

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from attnspec.integrations import transformers as attnspec_transformers

attnspec_transformers.register()

config = LlamaConfig(
    vocab_size=97, hidden_size=48, intermediate_size=40, num_hidden_layers=2,
    num_attention_heads=6, num_key_value_heads=2, pad_token_id=0, bos_token_id=1, eos_token_id=2,
)  # fmt: skip

# With weights to load it is AutoModelForCausalLM.from_pretrained(path, attn_implementation="attnspec"). Each model has
# a config of its own: transformers writes the name of the attention into it, and models that share one share the name.

torch.manual_seed(0)
model = LlamaForCausalLM._from_config(copy.deepcopy(config), attn_implementation="attnspec").eval()
eager = LlamaForCausalLM._from_config(copy.deepcopy(config), attn_implementation="eager").eval()
eager.load_state_dict(model.state_dict())

tokens = torch.randint(3, 97, (3, 11))
real = torch.ones_like(tokens)
real[1, :4] = 0  # the second sequence is padded before its first token

with torch.no_grad():
    logits, theirs = (m(tokens, attention_mask=real).logits for m in (model, eager))
torch.testing.assert_close(logits[real.bool()], theirs[real.bool()], rtol=1e-4, atol=1e-5)

written = model.generate(tokens, attention_mask=real, max_new_tokens=5, do_sample=False)
assert written.shape == (3, 16)

# A model that is loaded already changes its attention by name, and back.

assert model.config._attn_implementation == "attnspec"
model.set_attn_implementation("sdpa")
model.set_attn_implementation("attnspec")
