"""attnspec on Dask: `attnspec.attention` by chunks, and `attnspec_dask.reproducible` with the same bits for any."""
