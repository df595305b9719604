"""Masks are rules: they combine with & | ~, and nothing of size Q x K is made.

Two sequences of 5 and 3 real tokens, causal, at most two tokens back. What a token may not see cannot be
observed: replacing every padded key and value changes no bit of the output.
"""

import attnspec
from attnspec.backend import default as backend

rng_q, rng_k, rng_v = attnspec.random.split(attnspec.random.key(0), 3)
like = backend.asarray([0.0], dtype="float32")
q = attnspec.random.normal(rng_q, (2, 4, 5, 8), like=like)  # (B, H, Q, D)
k = attnspec.random.normal(rng_k, (2, 2, 5, 8), like=like)  # (B, G, K, D): two query heads share a key head
v = attnspec.random.normal(rng_v, (2, 2, 5, 6), like=like)  # (B, G, K, E): values have a width of their own

mask = attnspec.window(2, 0) & attnspec.padding([5, 3])
out = attnspec.attention(q, k, v, mask=mask)  # (B, H, Q, E)

real = backend.asarray([[[[1.0]] * 5], [[[1.0]] * 3 + [[0.0]] * 2]], dtype="float32")  # (B, 1, K, 1)
garbage = 1e30 * (1 - real)
same = attnspec.attention(q, k * real + garbage, v * real + garbage, mask=mask)
assert (backend.to_numpy(out) == backend.to_numpy(same)).all()

# One token sees only itself: its weight is exactly 1.
weights = backend.to_numpy(attnspec.attention_weights(q, k, mask=mask))  # (B, H, Q, K)
assert weights[0, 0, 0].tolist() == [1.0, 0.0, 0.0, 0.0, 0.0]
print(weights[0, 0].round(2))
