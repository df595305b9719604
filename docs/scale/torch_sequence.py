"""A sequence over the ranks of a process group, with gradients.

torchrun --nproc-per-node 4 docs/scale/torch_sequence.py
"""

import torch
import torch.distributed as dist
from attnspec_torch import distributed

import attnspec

dist.init_process_group("gloo")  # on GPUs "nccl", after torch.cuda.set_device
rank, n = dist.get_rank(), dist.get_world_size()

B, H, G, D, LENGTH = 2, 6, 2, 16, 64 * n
rng = torch.Generator().manual_seed(0)
q, k, v = (torch.randn(B, heads, LENGTH, D, generator=rng) for heads in (H, G, G))

# Rank i holds pieces i and 2 n - 1 - i of 2 n: under a causal mask all ranks have the same to compute.
pieces = torch.arange(LENGTH).chunk(2 * n)
place = torch.cat([pieces[rank], pieces[2 * n - 1 - rank]])
own = [x[:, :, place].requires_grad_() for x in (q, k, v)]

out = distributed.attention(*own, mask=attnspec.causal(), q_positions=place, k_positions=place)
(out**2).mean().backward()

# The same in one process: what a rank has are its rows of that.
whole = [x.requires_grad_() for x in (q, k, v)]
wanted = attnspec.attention(*whole, mask=attnspec.causal())
(n * (wanted**2).mean()).backward()  # the losses of the ranks, which are means of their own rows, are added
torch.testing.assert_close(out, wanted[:, :, place])
for one, other in zip(own, whole, strict=True):
    torch.testing.assert_close(one.grad, other.grad[:, :, place])
print(f"rank {rank} of {n}: {tuple(out.shape)} of {tuple(wanted.shape)}, and the gradients agree")
dist.destroy_process_group()
