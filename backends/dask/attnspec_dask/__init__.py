"""attnspec on Dask: attention and its gradients by chunks, in reproducible mode with the same bits for any chunks."""
