"""The loss of a classification."""

from __future__ import annotations

from . import _compat
from ._compat import SIGNED, Array, dtype_name, widened
from .derivative import differentiable
from .errors import DTypeError, MaskError, OptionError, ShapeError
from .gradients import cross_entropy_backward
from .host import host_of
from .rule_arrays import indices
from .shapes import broadcasts_to, floating, together


def cross_entropy(logits: Array, labels: Array, *, mask: Array | None = None) -> Array:
    """log(sum_c exp(logits_c)) - logits_label: minus the log-probability of each label.

    Parameters
    ----------
    logits : floating array (..., C)
    labels : signed integer array (...)
        0 .. C - 1. Another number raises where it can be looked at, and gives NaN where it cannot.
    mask : boolean array, broadcast from the right to (...), optional
        True = counts. Elsewhere the loss and its gradient are exactly 0, whatever logits and label are.

    Returns
    -------
    array (...)
        One loss for each label, in float32 or wider; the mean over those that count is the caller's to take.

    Notes
    -----
    PyTorch takes the mean by default and marks what does not count by label -100; here a mask says it.

    Examples
    --------
    >>> import numpy as np, attnspec
    >>> attnspec.cross_entropy(np.zeros((2, 4)), np.asarray([1, 3])).round(4).tolist()
    [1.3863, 1.3863]
    """
    floating(logits=logits)
    if not _compat.is_array(labels) or dtype_name(labels) not in SIGNED:
        msg = f"labels are {getattr(labels, 'dtype', type(labels).__name__)}; a signed integer array is needed."
        raise DTypeError(msg)
    if logits.ndim < 1 or tuple(labels.shape) != tuple(logits.shape[:-1]) or not logits.shape[-1]:
        got = f"logits {tuple(logits.shape)} and labels {tuple(labels.shape)}"
        msg = f"{got}: (..., C) with C >= 1, and (...), are needed."
        raise ShapeError(msg)
    if mask is not None:
        if not _compat.is_array(mask) or dtype_name(mask) != "bool" or not broadcasts_to(mask.shape, labels.shape):
            got = f"{dtype_name(mask)} {tuple(mask.shape)}" if _compat.is_array(mask) else type(mask).__name__
            msg = f"mask is {got}; a boolean array that broadcasts to {tuple(labels.shape)} is needed, True = counts."
            raise MaskError(msg)
        together(logits=logits, mask=mask)
    together(logits=logits, labels=labels)
    host, C = host_of(logits), logits.shape[-1]
    with host.scope():
        xp = _compat.namespace(labels)
        known = (labels >= 0) & (labels < C)
        fine = known if mask is None else known | ~mask
        if host.concrete(logits, labels) and not bool(xp.all(fine)):
            msg = f"labels run from {int(xp.min(labels))} to {int(xp.max(labels))}; 0 to {C - 1} are needed."
            raise OptionError(msg)
        labels = indices(xp.clip(labels, 0, C - 1))
        loss, _ = differentiable(_losses, cross_entropy_backward, (logits, labels, mask))
        return _compat.namespace(loss).where(fine, loss, float("nan"))


def _losses(operands: tuple[Array, Array, Array | None]) -> tuple[Array, Array]:
    """The losses, and log(sum exp(logits))."""
    logits, labels, mask = operands
    logits = widened(logits)
    xp = _compat.namespace(logits)
    if mask is not None:
        logits = xp.where(mask[..., None], logits, 0.0)
    top = xp.max(logits, axis=-1, keepdims=True)
    lse = (top + xp.log(xp.sum(xp.exp(logits - top), axis=-1, keepdims=True)))[..., 0]
    loss = lse - xp.take_along_axis(logits, labels[..., None], axis=-1)[..., 0]
    return loss if mask is None else xp.where(mask, loss, 0.0), lse
