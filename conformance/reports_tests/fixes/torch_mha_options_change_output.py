"""A row without any visible key has weights of 0 on every path."""

import torch

torch.backends.mha.set_fastpath_enabled(False)
softmax = torch.nn.functional.softmax
torch.nn.functional.softmax = lambda x, dim: softmax(x, dim).masked_fill((x == float("-inf")).all(dim, True), 0)
