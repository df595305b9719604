"""The promises about attention itself, by clause family."""

from ..trials import LAWS
from . import dropout, gradient, hiding, mask, path, recipes, score, shape, shard, softmax

__all__ = ["LAWS", "dropout", "gradient", "hiding", "mask", "path", "recipes", "score", "shape", "shard", "softmax"]
