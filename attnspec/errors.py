"""What attnspec refuses, by kind.

Each error is also the built-in that users of NumPy expect (ValueError, TypeError, ImportError), and each
message says what was passed, what was needed, and what to do.
"""

from __future__ import annotations

__all__ = [
    "AttnspecError",
    "BackendError",
    "BrokenBackendError",
    "CacheError",
    "DTypeError",
    "DeviceError",
    "DuplicateBackendError",
    "KernelError",
    "MaskError",
    "MissingFrameworkError",
    "MissingModelError",
    "OptionError",
    "ShapeError",
    "UnknownBackendError",
]


class AttnspecError(Exception):
    """Base of every refusal of attnspec."""


class ShapeError(AttnspecError, ValueError):
    """Axes that do not fit together (SHAPE-1, SCORE-5, MASK-2)."""


class DTypeError(AttnspecError, TypeError):
    """A dtype or a type that has no meaning here (SHAPE-3, SCORE-5)."""


class MaskError(DTypeError):
    """A mask that is not boolean (MASK-1)."""


class DeviceError(AttnspecError, ValueError):
    """Arrays of one call on several devices or of several frameworks (SHAPE-1)."""


class OptionError(AttnspecError, ValueError):
    """A scale, softcap, rate, eps or name outside its range (SCORE-1, SCORE-4, DROPOUT-1)."""


class CacheError(AttnspecError, ValueError):
    """Writing past the end of a key/value cache (MULTIHEAD-4)."""


class KernelError(AttnspecError, ValueError):
    """`implementation="native"` was asked for and no kernel takes the request."""


class BackendError(AttnspecError, ImportError):
    """A backend that cannot be had; the subclass says why (ERROR-2)."""


class UnknownBackendError(BackendError):
    """No distribution registers a backend of that name."""


class MissingFrameworkError(BackendError):
    """The backend is registered, the framework that it wraps is not installed."""


class BrokenBackendError(BackendError):
    """The backend is registered and fails to load, or lacks a part of the contract."""


class DuplicateBackendError(BackendError):
    """Two distributions register different backends under one name."""


class MissingModelError(AttnspecError, ImportError):
    """Weights, a tokenizer or the library that reads them are not installed, or a file of them is damaged."""
