import sys

import torch

print("torch", torch.__version__)
torch.manual_seed(0)
layer = torch.nn.MultiheadAttention(2, 2, batch_first=True)
x = torch.ones(1, 3, 2)
padding = torch.tensor([[True, True, True]])  # a sequence of padding alone
answers = set()
for mode in ("train", "eval"):
    for recorded in (True, False):
        for need_weights in (False, True):
            with torch.set_grad_enabled(recorded):
                out, _ = getattr(layer, mode)()(x, x, x, key_padding_mask=padding, need_weights=need_weights)
            answers.add(str(out[0, 0, 0].item()))
            print(f"{mode}, gradient recorded {recorded}, need_weights {need_weights}: {out[0, 0, 0].item()}")
print("right: one answer")
sys.exit(int(len(answers) > 1))
