"""What NumPy adds to the standard: silence inside, and values that may be looked at."""

from __future__ import annotations

from contextlib import AbstractContextManager

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


remember(np.ndarray, xp)

HOST = Host(scope=scope, concrete=concrete)
