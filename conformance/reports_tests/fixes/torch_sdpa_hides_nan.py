"""The kernel that keeps NaN is the only one."""

from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

functional.scaled_dot_product_attention = sdpa_kernel(SDPBackend.MATH)(functional.scaled_dot_product_attention)
