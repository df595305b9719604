"""Docstrings in attnspec's form, as reStructuredText.

The sections are numpydoc's; the text between them is plain, with code in single backticks. Stars, bars and underscores
mean themselves, and a paragraph of the introduction that has an equation in its first line is a formula.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Iterator
from itertools import groupby
from textwrap import dedent

ENTRIES = ("Parameters", "Returns", "Yields", "Raises", "See Also")
FIELD = re.compile(r"    (\w+): (?P<type>[^=#]+?)(?: = (?P<default>[^#]+?))?(?:  # (?P<about>.+))?")


def restructured(text: str, cls: type | None = None) -> list[str]:
    """The lines of a docstring; of a dataclass with its fields, and what is noted beside them."""
    heads = list(re.finditer(r"^(\w[\w ]*)\n(-{3,})$", text, re.MULTILINE))
    ends = [*(head.start() for head in heads[1:]), len(text)] if heads else []
    introduction = text[: heads[0].start()] if heads else text
    lines = list(_introduction(introduction))
    if cls is not None and dataclasses.is_dataclass(cls):
        lines += _fields(cls)
    for head, end in zip(heads, ends, strict=True):
        name, body = head[1], text[head.end() : end].strip("\n")
        if name in ENTRIES:
            lines += [f":{name}:", *(f"   {line}".rstrip() for line in _entries(body)), ""]
        else:
            lines += [f".. rubric:: {name}", "", *_paragraphs(body), ""]
    return lines


def _introduction(text: str) -> Iterator[str]:
    for code, paragraphs in groupby(re.split(r"\n\s*\n", text.strip("\n")), _is_code):
        if code:
            lines = dedent("\n\n".join(paragraphs)).split("\n")
            yield from (".. code-block:: python", "", *(f"   {line}" for line in lines), "")
            continue
        for paragraph in paragraphs:
            lines = paragraph.split("\n")
            if " = " in lines[0] and "`" not in lines[0]:
                yield from (".. code-block:: text", "   :class: plain-formula", "", *(f"   {ln}" for ln in lines), "")
            else:
                yield from (*_paragraphs(paragraph), "")


def _is_code(paragraph: str) -> bool:
    return bool(re.match(r"    |from [\w.]+ import |\w+\.\w+\(|with .*:\n    ", paragraph))


def _paragraphs(text: str) -> Iterator[str]:
    """Text, and examples as they are."""
    example = False
    for line in text.split("\n"):
        example = line.lstrip().startswith(">>>") or (example and bool(line.strip()))
        yield line if example else _plain(line)


def _entries(text: str) -> Iterator[str]:
    """`name : type` and what is indented below it, as items of a list; other lines as they are."""
    for line in text.split("\n"):
        if line.startswith(" "):
            yield f"  {_plain(line.strip())}"
        elif " : " in line:
            name, _, kind = line.partition(" : ")
            yield from ("", f"- **{_plain(name)}** : {_plain(kind)}", "")
        elif line:
            yield from ("", f"- {_plain(line)}", "")
        else:
            yield ""


def _fields(cls: type) -> Iterator[str]:
    found = [match for line in _body(cls) if (match := FIELD.fullmatch(line))]
    if not found:
        return
    yield from ("", ":Fields:")
    for match in found:
        kind = f"``{match['type']}``"
        default = f", ``{given}`` unless given" if (given := _default(match["default"] or "")) else ""
        about = f": {_plain(match['about'])}" if match["about"] else ""
        yield f"   - **{match[1]}** ({kind}{default}){about}"
    yield ""


def _default(written: str) -> str:
    """What a field is unless given, also where it is written `field(default=...)`."""
    written = written.strip()
    if not written.startswith("field("):
        return written
    found = re.search(r"default(?:_factory)?=([^,()]+)", written)
    return {"dict": "{}", "list": "[]"}.get(found[1], found[1]) if found else ""


def _body(cls: type) -> Iterator[str]:
    """The lines of a class before its first method; those of its base for a class that was made by a program."""
    try:
        source = inspect.getsource(cls)
    except OSError:
        source = inspect.getsource(cls.__mro__[1])
    for line in source.split("\n"):
        if line.startswith(("    def ", "    @")):
            return
        yield line


def _plain(text: str) -> str:
    """Code in double backticks. Outside of it a bullet is one, and what else has a meaning is taken by its sign."""
    bullet = re.match(r"\s*\* |", text)[0]
    parts = re.split(r"(`+[^`]+`+)", text.removeprefix(bullet))
    return bullet + "".join(f"``{p.strip('`')}``" if n % 2 else _escaped(p) for n, p in enumerate(parts))


def _escaped(text: str) -> str:
    return re.sub(r"[*|]|_(?!\w)|(?<=\w)_(?=\W|$)|`", r"\\\g<0>", text)
