"""Published checkpoints computed by attnspec: safetensors files of BERT, GPT-2 and Llama-shaped models.

    from attnspec import checkpoints
    from attnspec.backend import numpy as backend

    model = checkpoints.load("path/of/the/folder", backend=backend)     # config.json and model.safetensors
    hidden = model.hidden(backend.asarray([[5, 7, 2]]))                 # (1, 3, M)

The maps from names to parameters are in `checkpoints_maps.py`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

from ._compat import FLOATING, Array
from .backend import Backend
from .block import normalise, transformer_stack
from .checkpoints_maps import FAMILIES, Config, Tensors, quantised
from .embedding import embed
from .errors import DTypeError, MissingModelError, OptionError, ShapeError
from .linear import linear
from .masks import Mask, padding, window
from .params import NormParams, StackParams
from .rotary import Rotary
from .struct import Struct

__all__ = ["Model", "convert", "load"]


@dataclass(frozen=True)
class Model(Struct):
    """A Transformer with its embeddings: what a checkpoint holds, and what it computes from token ids.

    Examples
    --------
    >>> import numpy as np, attnspec
    >>> stack = attnspec.StackParams.init(
    ...     attnspec.random.key(0), depth=1, order="pre", model_width=8, heads=2, hidden_width=8, like=np)
    >>> model = Model(np.eye(9, 8, dtype="float32"), stack, causal=True, rotary=attnspec.Rotary())
    >>> model.logits(np.asarray([[4, 0, 7]])).shape
    (1, 3, 9)
    """

    tokens: Array  # (V, M)
    stack: StackParams
    positions: Array | None = None  # (N, M), added to the tokens
    types: Array | None = None  # (T, M), added to the tokens
    norm: NormParams | None = None  # of the sum of these
    head: Array | None = None  # (M, V), the tokens' own rows unless given
    tied: bool = True  # whether they are the head; a model stored without one has none
    rotary: Rotary | None = None
    causal: bool = False
    window: int | None = None  # keys that a query sees, its own and those before it

    def embedded(self, ids: Array, types: Array | None = None, *, start: int = 0) -> Array:
        """What the stack is given: ids (..., Q) of the positions start, start + 1, ... -> (..., Q, M).

        Parameters
        ----------
        ids : signed integer array (..., Q)
        types : signed integer array (..., Q), optional
            Where the model has types, such as BERT's two segments; the first unless given.
        start : int
            Position of the first id: the length of the cache in a step of decoding.
        """
        x = embed(self.tokens, ids)
        if self.types is not None:
            x = x + (self.types[0, :] if types is None else embed(self.types, types))
        elif types is not None:
            msg = "types are given to a model that has none. Leave them out."
            raise OptionError(msg)
        if self.positions is not None:
            N, stop = self.positions.shape[0], start + ids.shape[-1]
            if not 0 <= start <= stop <= N:
                msg = f"positions {start} to {stop - 1} are asked for, the model has 0 to {N - 1}. Pass shorter texts."
                raise ShapeError(msg)
            x = x + self.positions[start:stop, :]
        return x if self.norm is None else normalise(self.norm, x)

    def mask(self, lengths: int | list[int] | Array | None = None) -> Mask | None:
        """What a token may see: those of the text's `lengths`, and in a causal model those before it, in the window."""
        real = None if lengths is None else padding(lengths)
        if not self.causal:
            return real
        before = window(None if self.window is None else self.window - 1, 0)
        return before if real is None else before & real

    def hidden(self, ids: Array, lengths: int | list[int] | Array | None = None, types: Array | None = None) -> Array:
        """The last hidden states, after the last norm if there is one: ids (..., Q) -> (..., Q, M).

        Parameters
        ----------
        ids, types
            As in `embedded`.
        lengths : int, list of int, or signed integer array (...)
            Real tokens of each text, padded at its end; all unless given. Rows past it mean nothing.

        Notes
        -----
        A step of decoding is
        `transformer_stack_with_cache(model.stack, model.embedded(ids, start=n), caches, rotary=model.rotary,
        mask=model.mask())`.
        """
        return transformer_stack(self.stack, self.embedded(ids, types), mask=self.mask(lengths), rotary=self.rotary)

    def logits(self, ids: Array, lengths: int | list[int] | Array | None = None) -> Array:
        """Scores of every token to come next: ids (..., Q) -> (..., Q, V). Causal models with a head have them."""
        if not self.causal:
            msg = "the model is not causal: it foretells no next token. Use `hidden`."
            raise OptionError(msg)
        if self.head is None and not self.tied:
            msg = (
                "the model was stored without its head, and the rows of the tokens are none: tie_word_embeddings is "
                "false in the configuration. Use `hidden`, or convert the tensors with `lm_head.weight` among them."
            )
            raise OptionError(msg)
        return linear(self.hidden(ids, lengths), self.tokens.T if self.head is None else self.head)


def convert(
    tensors: Mapping[str, Any],
    config: Any,
    *,
    backend: Backend,
    dtype: str | None = None,
    device: Any = None,
) -> Model:
    """The model that tensors and a configuration describe, in transformers' names, as arrays of `backend`.

    Parameters
    ----------
    tensors : mapping of names to arrays
        Those that `backend.asarray` takes: NumPy's, or those of the backend's own framework, as in a `state_dict()`.
        Names with a prefix for the task ("bert.", "transformer.", "model.") or without. What a head for a task has
        besides is not read, except `lm_head` of the causal families.
    config : mapping, or an object with `to_dict()`
        What `config.json` holds, or transformers' `model.config`; `model_type` is one of bert, gpt2, llama, mistral and
        qwen2.
    backend : backend
        See `attnspec.backend`.
    dtype : str, optional
        Of the arrays, by its name; as stored unless given.
    device : optional
        Where they are.

    Raises
    ------
    errors.OptionError
        For another family, for an option of the configuration that attnspec's layers lack (scaled rotary positions,
        windows in some layers only, cross-attention), and for tensors that are missing or have no place.
    errors.ShapeError
        Where the tensors are not those of the configuration.
    errors.DTypeError
        For quantised weights, and for tensors or a configuration that are no mapping.

    Notes
    -----
    `tie_word_embeddings` is true for GPT-2 and false for the others unless the configuration says otherwise. Where it
    is true and `lm_head.weight` differs from the tokens' rows, it is the head, as in transformers. A model without a
    head, stored alone or below a head for another task, computes `hidden` and refuses `logits`.

    Dropout is for training and is not part of a `Model`; GPT-2's `gelu_new` is `gelu_tanh` here.
    Source: the models of transformers 5.24.

    Examples
    --------
    >>> import numpy as np
    >>> from attnspec.backend import numpy as backend
    >>> tensors = {"wte.weight": np.eye(5, 4), "wpe.weight": np.eye(3, 4), "ln_f.weight": np.ones(4)}
    >>> config = {"model_type": "gpt2", "n_head": 2, "n_layer": 0, "layer_norm_epsilon": 0.0}
    >>> convert(tensors, config, backend=backend).hidden(np.asarray([2])).round(3).tolist()
    [[1.0, -1.0, 1.0, -1.0]]
    """
    if not isinstance(tensors, Mapping):
        msg = f"tensors is a {type(tensors).__name__}; a mapping of names to arrays is needed, as of `state_dict()`."
        raise DTypeError(msg)
    if not isinstance(config, Mapping) and hasattr(config, "to_dict"):
        config = config.to_dict()
    return _converted(tensors, tensors.__getitem__, config, backend, dtype, device)


def load(folder: str | PathLike[str], *, backend: Backend, dtype: str | None = None, device: Any = None) -> Model:
    """The model of a folder with `config.json` and `model.safetensors`, as `save_pretrained` of transformers writes it.

    Parameters as `convert`, except that tensors stored in bfloat16, which not every backend has, are widened to float32
    unless `dtype` says otherwise. Weights in several files are found by `model.safetensors.index.json`. Needs
    safetensors; files of pickles are not read, because reading one runs what is in it.

    Raises
    ------
    errors.MissingModelError
        Where a file or the library is missing, or a file is damaged.

    Examples
    --------
    >>> import json, pathlib, tempfile
    >>> import numpy as np
    >>> from safetensors.numpy import save_file
    >>> from attnspec.backend import numpy as backend
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_file(
    ...         {"wte.weight": np.eye(5, 4), "wpe.weight": np.eye(3, 4), "ln_f.weight": np.ones(4)},
    ...         f"{folder}/model.safetensors",
    ...     )
    ...     config = {"model_type": "gpt2", "n_head": 2, "n_layer": 0, "layer_norm_epsilon": 0.0}
    ...     _ = pathlib.Path(folder, "config.json").write_text(json.dumps(config))
    ...     load(folder, backend=backend).tokens.shape
    (5, 4)
    """
    try:
        from safetensors import SafetensorError, safe_open
    except ImportError:
        msg = "reading checkpoints needs 'safetensors', which is not installed: pip install safetensors"
        raise MissingModelError(msg) from None

    folder = Path(folder)
    index = folder / "model.safetensors.index.json"
    names = set(_json(index, "weight_map").values()) if index.is_file() else {"model.safetensors"}
    config = _json(folder / "config.json")
    with ExitStack() as stack:
        holder = {}
        for path in (folder / name for name in sorted(names)):
            try:
                file = stack.enter_context(safe_open(_present(path), framework="numpy"))
            except SafetensorError as error:
                raise _damaged(path, error) from None
            holder.update(dict.fromkeys(file.keys(), file))
        return _converted(holder, lambda name: _tensor(holder[name], name), config, backend, dtype, device)


def _json(path: Path, *parts: str) -> dict[str, Any]:
    """The object that a file holds, or a part of it."""
    try:
        found = json.loads(_present(path).read_text(encoding="utf-8"))
        for part in parts:
            found = found[part]
        return dict(found)
    except (ValueError, KeyError, TypeError) as error:
        raise _damaged(path, error) from None


def _present(path: Path) -> Path:
    if not path.is_file():
        msg = f"{path} is missing: config.json and safetensors files are needed, as save_pretrained writes them."
        raise MissingModelError(msg)
    return path


def _damaged(path: Path, error: Exception) -> MissingModelError:
    msg = f"{path} is damaged, or no file of a checkpoint ({type(error).__name__}: {error}). Fetch or save it again."
    return MissingModelError(msg)


def _tensor(file: Any, name: str) -> Any:
    """The tensor in NumPy; bfloat16, which NumPy lacks, widened to float32, without rounding."""
    stored = file.get_slice(name).get_dtype()
    if stored not in ("F16", "BF16", "F32", "F64"):
        raise quantised(name, stored)
    if stored != "BF16":
        return file.get_tensor(name)
    try:
        import ml_dtypes  # noqa: F401  # tells NumPy what bfloat16 is
    except ImportError:
        msg = f"{name} is bfloat16; reading it needs 'ml_dtypes', which is not installed: pip install ml_dtypes"
        raise MissingModelError(msg) from None
    return file.get_tensor(name).astype("float32")


def _converted(
    names: Iterable[str],
    read: Callable[[str], Any],
    config: Mapping[str, Any],
    backend: Backend,
    dtype: str | None,
    device: Any,
) -> Model:
    if not isinstance(config, Mapping):
        msg = f"config is a {type(config).__name__}; a mapping is needed, such as `config.to_dict()`."
        raise DTypeError(msg)
    if dtype is not None and dtype not in FLOATING:
        msg = f"dtype={dtype!r}: one of {', '.join(map(repr, FLOATING))} is needed, by its name."
        raise OptionError(msg)
    family = config.get("model_type")
    if family not in FAMILIES:
        msg = f"model_type={family!r} in the configuration; there are maps for {', '.join(FAMILIES)}."
        raise OptionError(msg)
    return Model(**FAMILIES[family](Tensors(names, read, backend, dtype, device), Config(config)))
