"""attnspec's attention behind the signatures and the conventions of other libraries.

Each module says what its library means by causal, by a mask and by a window, and asks `attnspec.attention` for it.
None imports its library before it is used.
"""
