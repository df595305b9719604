"""Random numbers: integers and uniform numbers are identical everywhere as they are, `normal` is made so."""

from ..random import Key, bernoulli, bits, fold_in, key, split, uniform, wrap
from ..random import normal as _normal
from .doors import identically

normal = identically(_normal)

__all__ = ["Key", "bernoulli", "bits", "fold_in", "key", "normal", "split", "uniform", "wrap"]
