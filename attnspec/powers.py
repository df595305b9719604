"""Powers of numbers that do not depend on the machine's mathematics library."""

from __future__ import annotations

from decimal import Context, Decimal
from functools import cache

_DIGITS = Context(prec=50)


@cache
def power(base: float, numerator: int, denominator: int) -> float:
    """base**(numerator / denominator) for base > 0, the nearest float64. (`**` may be off by one, and not alike.)"""
    exponent = _DIGITS.divide(Decimal(numerator), Decimal(denominator))
    return float(_DIGITS.power(Decimal(base), exponent))


power._dynamo_marked_constant = True  # type: ignore[attr-defined]  # `torch.compile` takes its result as a constant
