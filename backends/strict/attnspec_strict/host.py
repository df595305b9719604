"""array-api-strict computes with NumPy: its warnings are silenced, nothing else is taken from it."""

from __future__ import annotations

from contextlib import AbstractContextManager

import numpy as np

from attnspec.host import Host


def scope() -> AbstractContextManager[None]:
    """Overflow and NaN are values here, defined by the spec, and no reason to warn."""
    return np.errstate(all="ignore")


HOST = Host(scope=scope, device_of=lambda x: x.device)
