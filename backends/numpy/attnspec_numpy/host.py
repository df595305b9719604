"""What NumPy adds to the standard: silence inside, and values that may be looked at."""

from __future__ import annotations

from contextlib import AbstractContextManager
from importlib.util import find_spec
from typing import Any

import array_api_compat.numpy as xp
import numpy as np

from attnspec._compat import remember
from attnspec.host import Host


def scope() -> AbstractContextManager[None]:
    """Overflow and NaN are values here, defined by the spec, and no reason to warn."""
    return np.errstate(all="ignore")


def concrete(*arrays: object) -> bool:
    """Only NumPy's own arrays: subclasses may record, carry units or masks."""
    return all(type(a) is np.ndarray for a in arrays)


def dtype(xp: Any, name: str) -> Any:
    """bfloat16 is that of ml_dtypes, where it is installed."""
    if name == "bfloat16" and find_spec("ml_dtypes"):
        import ml_dtypes

        return ml_dtypes.bfloat16
    return getattr(xp, name, None)


remember(np.ndarray, xp)

HOST = Host(scope=scope, concrete=concrete, dtype=dtype)
