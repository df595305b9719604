"""Attention over Dask arrays: a graph of tasks, in which nothing is computed before it is asked for.

Needs: pip install attnspec-dask
"""

import dask.array as da
import numpy as np

import attnspec

rng = np.random.default_rng(0)
q, k, v = (rng.standard_normal(shape).astype("float32") for shape in ((6, 50, 8), (2, 700, 8), (2, 700, 4)))
lazy = [da.from_array(x, chunks=chunks) for x, chunks in ((q, (6, 20, 8)), (k, (1, 256, 8)), (v, (2, 100, 4)))]

out = attnspec.attention(*lazy, mask=attnspec.causal(align="end"))  # (H, Q, E)
assert isinstance(out, da.Array)
assert np.allclose(out.compute(), attnspec.attention(q, k, v, mask=attnspec.causal(align="end")), atol=1e-5)
