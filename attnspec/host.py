"""The one seam for what the Array API standard cannot say.

A *host* is what a framework adds: how to keep its autocast out, whether an array may be written to, how a loop is
recorded, how a function is given its own derivative, fused kernels. The core asks `host_of(array)` and never names
a framework. Hosts are found by the root package of an array's type, through the entry-point group `attnspec.hosts`;
an unknown framework, a missing or a broken host get `Host()`, which is portable and does nothing special.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from typing import TYPE_CHECKING, Any

from . import _compat
from ._compat import Array
from .overwriting import InPlace

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from importlib.metadata import EntryPoint


@dataclass(frozen=True)
class Kernel:
    """A fused implementation, wrapped so that the REQUIRED clauses hold.

    Both functions take a `request.Request`. `supports` reads static facts only (shapes, dtypes, device, kind of mask)
    and returns None, or why not.
    `rounds_weights`: the weights are rounded once to a half-precision input dtype before the product with v (PATH-2).
    `recorded`: it goes through `derivative.differentiable`, and so may be given the arrays of `attnspec.vjp`.
    `from_scores`: "auto" leaves calls with fewer scores to others, because they are faster there.
    `takes_concrete`: False where it takes no arrays that are `concrete`, such as those of a class of their own.
    `is_near`: whether it takes arrays that lie where this one does.
    `at_once`: `at_once(q, k, v, mask, scale)`, asked before anything is checked: the out of `attention`, to the bit as
    `call` has it, for a call without further options that shows at a glance to be right and to be supported; else None.
    """

    name: str
    supports: Callable[[Any], str | None]
    call: Callable[[Any], tuple[Array, Array | None]]
    rounds_weights: bool = False
    recorded: bool = False
    from_scores: int = 0
    takes_concrete: bool = True
    is_near: Callable[[Any], bool] = lambda x: True
    at_once: Callable[[Any, Any, Any, Any, Any], Array | None] | None = None


def _never(*arrays: Array) -> bool:
    return False


def _call(function: Callable[..., Any], operands: Any, *static: Any) -> Any:
    return function(operands, *static)


def _plainly(function: Callable[..., Any], *arrays: Array, **static: Any) -> Any:
    return function(*arrays, **static)


def _nothing(cls: type) -> None:
    return None


def _no_device(x: Array) -> None:
    return None


def _own_dtype(xp: Any, name: str) -> Any:
    return getattr(xp, name, None)


@dataclass(frozen=True)
class Host:
    """What a framework adds to the standard. Every field has a default that is right everywhere.

    scope
        A context inside which arithmetic is never lowered or reported: autocast and TF32 off, highest matmul
        precision, floating-point warnings silent.
    concrete
        Whether the values of these arrays may be looked at: eager, no gradient being recorded, no transform around
        them. What is computed must not depend on the answer, only how. False is always right.
    traced
        Whether work on these arrays is being recorded into a program, so that Python loops unroll into it.
    run
        `run(function, operands, *static)`: `function(operands, *static)`, as one compiled program where running it
        operation by operation would compile each of them. `operands` is a tree of arrays.
    scan
        `scan(step, carry, start, stop)`: the loop `carry, y = step(carry, n)` recorded once whatever its length;
        returns the last carry and the y's stacked along a new first axis. None: there is only Python's loop.
    rows
        `rows(x, start, size, axis)`: `x[start : start + size]` along that negative axis, for a `start` that such a loop
        makes of its `n`. None: by `take`.
    with_vjp
        `with_vjp(forward, backward)`: the function `forward(*arrays) -> results` (a tuple of arrays), differentiated
        by `backward(arrays, results, cotangents) -> gradients`, an array or None (zero) for each of the arrays. None:
        the framework has no autodiff. With `reverse_only=True` the operations of `forward` have no slopes that
        forward mode could use instead, and it is refused.
    taped
        Whether `with_vjp` is the only derivative there is: these arrays record attnspec's functions and not what they
        are made of.
    threefry
        `prng.rounds` as one operation, where a hundred small ones cost too much to record or to dispatch. None: they
        do not.
    register
        Make a `Struct` subclass a pytree of the framework.
    device_of
        The device to create further arrays on, None where the framework places them itself.
    dtype
        `dtype(xp, name)`: the dtype of that name, None if there is none.
    in_place
        For frameworks with arrays that may be written to; None: there are none.
    kernels
        Fused implementations, best first.
    numerics
        `numerics(request)`: the `numerics.Numerics` of attention on these arrays; None: the default one.
    erfc
        The complementary error function, if there is a better one than `special.erfc`; None: there is not.
    sealed
        `sealed(function, *arrays, **static)`: `function(*arrays, **static)`, in a recorded program one operation that
        is not opened, so that it is compiled once and never fused with what is around it.
    apart
        A context for reproducible mode: float64 exists in it, and nothing that is computed is recorded for a gradient.
    """

    scope: Callable[[], AbstractContextManager[Any]] = contextlib.nullcontext
    concrete: Callable[..., bool] = _never
    traced: Callable[..., bool] = _never
    run: Callable[..., Any] = _call
    scan: Callable[[Callable[[Any, Any], tuple[Any, Any]], Any, int, int], tuple[Any, Any]] | None = None
    rows: Callable[[Array, Array, int, int], Array] | None = None
    with_vjp: Callable[..., Callable[..., Any]] | None = None
    taped: bool = False
    threefry: Callable[[tuple[Any, Any], tuple[Any, Any]], tuple[Any, Any]] | None = None
    register: Callable[[type], None] = _nothing
    device_of: Callable[[Array], Any] = _no_device
    dtype: Callable[[Any, str], Any] = _own_dtype
    in_place: InPlace | None = None
    kernels: Sequence[Kernel] = ()
    numerics: Callable[[Any], Any] | None = None
    erfc: Callable[[Array], Array] | None = None
    sealed: Callable[..., Any] = _plainly
    apart: Callable[[], AbstractContextManager[Any]] = contextlib.nullcontext


DEFAULT = Host(device_of=lambda x: getattr(x, "device", None))

_entries: dict[str, EntryPoint] = {}
_kernels: list[EntryPoint] = []
_hosts: dict[str, Host] = {}
_roots: dict[type, str] = {}
_loading: set[str] = set()  # hosts whose import makes Structs, which asks for hosts
_announced: list[type] = []
_registered: set[tuple[Callable[[type], None], type]] = set()  # several hosts may register alike
errors: dict[str, Exception] = {}


def host_of(array: Array) -> Host:
    """The host of an array, by the root package of its type or of a base of it; `DEFAULT` if nobody registered one."""
    if isinstance(array, _compat.Wrapped):
        return _hosted(type(array), host_of(array.inner))  # type: ignore[arg-type]
    return _hosts.get(_root(type(array)), DEFAULT)


@cache
def _hosted(kind: type[_compat.Wrapped], inner: Host) -> Host:
    return kind.hosted(inner)  # type: ignore[no-any-return]


def announce(cls: type) -> None:
    """Make a class a pytree of every framework that is imported by now.

    And of each that comes later, once the next Struct is made, or an array of it met, or its backend picked.
    """
    load_errors()
    if cls not in _announced:
        _announced.append(cls)
        for root in list(_hosts):
            _register(root, cls)


def install(root: str, host: Host) -> None:
    """Take `host` for arrays whose types come from the package `root`: what a copy without entry points does.

    `root` may be the full name of one type, too.

    A copy keeps the clauses about autocast, warnings and pytrees only with the host of the framework beside it:
    `backends/<name>/attnspec_<name>/host.py`, its imports of attnspec changed to the copy's.
    """
    _hosts[root] = host
    _roots.clear()  # the root may be that of a type that had another
    for cls in _announced:
        _register(root, cls)


def add_kernel(root: str, kernel: Kernel) -> None:
    """Ask this kernel before those that the host of `root`, the root package of a framework, has.

    A distribution does the same with an entry point of the group `attnspec.kernels`, whose name is that of the root (or
    `root.anything`, where it has several) and whose value is the Kernel.
    """
    _read_entries()
    _ready(root)
    install(root, replace(_hosts[root], kernels=(kernel, *_hosts[root].kernels)))


def load_errors() -> dict[str, Exception]:
    """What went wrong with each host that does not load, those of the frameworks that are imported by now."""
    _read_entries()
    for root in _entries:
        if root in sys.modules:
            _ready(root)
    return dict(errors)


def on(device: Any) -> dict[str, Any]:
    """Keyword arguments of a creation function; none where the framework places arrays itself or has no `device=`."""
    return {} if device is None else {"device": device}


def beside(array: Array) -> dict[str, Any]:
    """Keyword arguments with which a creation function puts a new array on the device of `array`."""
    return on(host_of(array).device_of(array))


def _root(kind: type) -> str:
    root = _roots.get(kind)
    if root is None:
        root = _roots[kind] = _found_root(kind)
    return root


def _found_root(kind: type) -> str:
    name = f"{kind.__module__}.{kind.__qualname__}"
    if name in _hosts:
        return name
    _read_entries()
    roots = [base.__module__.partition(".")[0] for base in kind.__mro__]
    root = next((r for r in roots if r in _entries), roots[0])
    _ready(root)
    return root


def _ready(root: str) -> None:
    if root in _hosts or root in _loading:
        return
    host = DEFAULT
    if root in _entries:
        _loading.add(root)
        try:
            host = _entries[root].load()
            lacking = [f.name for f in fields(Host) if not hasattr(host, f.name)]
            if lacking:
                msg = f"{_entries[root].value} is no Host: it lacks {', '.join(lacking)}."
                raise TypeError(msg)
        except Exception as error:
            host, errors[root] = DEFAULT, error
        finally:
            _loading.remove(root)
    more = tuple(_kernels_for(root))
    _hosts[root] = replace(host, kernels=(*more, *host.kernels)) if more else host
    for cls in _announced:
        _register(root, cls)


@cache
def _read_entries() -> None:
    """The entry points of hosts and kernels, at the first need of one: to read them takes longer than other imports."""
    from importlib.metadata import entry_points

    found = entry_points()
    for entry in found.select(group=_compat.HOSTS_GROUP):
        first = _entries.setdefault(entry.name, entry)
        if first.value != entry.value:
            errors[entry.name] = ImportError(f"two hosts for {entry.name!r}: {first.value}, {entry.value}")
    _kernels[:] = found.select(group=_compat.KERNELS_GROUP)


def _kernels_for(root: str) -> Iterator[Kernel]:
    """Those of other distributions; one that does not load stops nobody."""
    for entry in _kernels:
        if entry.name.partition(".")[0] == root:
            try:
                kernel = entry.load()
                if not isinstance(kernel, Kernel):
                    msg = f"{entry.value} is a {type(kernel).__name__}; a Kernel is needed."
                    raise TypeError(msg)
                yield kernel
            except Exception as error:
                errors[f"kernel {entry.name}"] = error


def _register(root: str, cls: type) -> None:
    """A host that cannot register a class loses its say; it must not stop the others."""
    host = _hosts[root]
    if (host.register, cls) in _registered:
        return
    _registered.add((host.register, cls))
    try:
        host.register(cls)
    except Exception as error:
        _hosts[root], errors[root] = DEFAULT, error


# The first array, or the first struct, may arrive while `torch.compile` records: it then calls these functions instead
# of tracing them.
_root._dynamo_marked_constant = True  # type: ignore[attr-defined]
announce._dynamo_marked_constant = True  # type: ignore[attr-defined]
