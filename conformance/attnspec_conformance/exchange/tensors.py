"""Safetensors files of NumPy arrays, bfloat16 among them: https://github.com/huggingface/safetensors#format.

Written here, so that the bytes do not depend on a library's version; read by the library, which checks the format.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

import numpy as np
import safetensors

from ..masks import Array
from ..problems import rounded

_CODES = {
    "float64": ("F64", "<f8"),
    "float32": ("F32", "<f4"),
    "float16": ("F16", "<f2"),
    "bfloat16": ("BF16", "<u2"),
    "int32": ("I32", "<i4"),
    "bool": ("BOOL", "|b1"),
}
_FLOATS = {code: (name, stored) for name, (code, stored) in _CODES.items() if "float" in name}


def encode(arrays: Mapping[str, tuple[Array, str]], metadata: Mapping[str, str]) -> bytes:
    """A file of arrays, each with the name of its dtype; the widest come first, so that each is aligned."""
    header: dict[str, object] = {"__metadata__": dict(metadata)}
    parts, end = [], 0
    for name, (x, dtype) in sorted(arrays.items(), key=lambda item: (-_width(item[1][1]), item[0])):
        content = _bytes(x, dtype)
        header[name] = {"dtype": _CODES[dtype][0], "shape": list(x.shape), "data_offsets": [end, end + len(content)]}
        parts.append(content)
        end += len(content)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + b"".join(parts)


def decode(content: bytes) -> dict[str, tuple[Array, str]]:
    """The arrays of a file as float64, each with the name of its dtype. Raises ValueError for what is no such file."""
    try:
        found = safetensors.deserialize(content)  # type: ignore[no-untyped-call]
    except safetensors.SafetensorError as error:
        raise ValueError(str(error)) from error
    arrays = {}
    for name, tensor in found:
        if tensor["dtype"] not in _FLOATS:
            msg = f"{name} has dtype {tensor['dtype']}, wanted one of {', '.join(_FLOATS)}"
            raise ValueError(msg)
        dtype, stored = _FLOATS[tensor["dtype"]]
        x = np.frombuffer(tensor["data"], stored)
        if dtype == "bfloat16":
            x = (x.astype(np.uint32) << 16).view(np.float32)
        arrays[name] = x.astype(np.float64).reshape(tensor["shape"]), dtype
    return arrays


def _width(dtype: str) -> int:
    return int(np.dtype(_CODES[dtype][1]).itemsize)


def _bytes(x: Array, dtype: str) -> bytes:
    stored = _CODES[dtype][1]
    if dtype == "bfloat16":
        x = np.ascontiguousarray(rounded(x, dtype)).view(np.uint32) >> 16
    with np.errstate(all="ignore"):
        return bytes(np.ascontiguousarray(x).astype(stored).tobytes())
