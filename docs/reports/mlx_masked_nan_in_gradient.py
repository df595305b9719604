import sys
from importlib.metadata import version

import mlx.core as mx

print("mlx", version("mlx"))
query = mx.ones((1, 1, 1, 2))
key = mx.array([[[[1.0, 0.0], [0.0, 1.0], [mx.nan, mx.nan]]]])
value = mx.array([[[[2.0, 0.0], [0.0, 4.0], [0.0, 0.0]]]])
mask = mx.array([True, True, False])  # the key of NaN is hidden


def total(query, key, value, mask=None):
    return mx.fast.scaled_dot_product_attention(query, key, value, scale=0.5, mask=mask).sum()


got = mx.grad(total)(query, key, value, mask)
right = mx.grad(total)(query, key[:, :, :2], value[:, :, :2])
print("output:", total(query, key, value, mask).item(), " right:", total(query, key[:, :, :2], value[:, :, :2]).item())
print("gradient of query:", got.flatten().tolist(), " right, without the hidden key:", right.flatten().tolist())
sys.exit(int(not mx.allclose(got, right)))
