"""What `import attnspec` loads, and that its names are there all the same."""

import ast
from importlib import import_module
from pathlib import Path

import pytest
from distributions import code

import attnspec

LATER = ("array_api_compat", "attnspec.attention", "attnspec.host", "dataclasses", "importlib.metadata", "json")
FUNCTIONS = ("attention", "dropout", "feed_forward", "rotary")  # each has the name of its module


def loaded(program: str, *names: str) -> list[str]:
    """Which of these modules a program ends up with."""
    return code(f"import sys\n{program}\nprint(*(name for name in {names!r} if name in sys.modules))").split()


def test_import_attnspec_loads_nothing_before_a_name_is_used():
    assert loaded("import attnspec", *LATER, "numpy", "torch", "jax") == []


def test_a_name_loads_what_it_needs_and_entry_points_are_read_when_an_array_comes():
    assert loaded("import attnspec; attnspec.causal()", "attnspec.params", "json", "attnspec.attention") == []
    without = "import attnspec; attnspec.attention; attnspec.alibi; attnspec.MultiHeadParams"
    assert loaded(without, "importlib.metadata") == []


def test_each_public_name_is_found_by_a_program_that_uses_no_other():
    program = f"""
        import sys
        for name in {attnspec.__all__}:
            for loaded in [module for module in sys.modules if module.partition(".")[0] == "attnspec"]:
                del sys.modules[loaded]
            import attnspec
            print(getattr(attnspec, name).__name__.rpartition(".")[2])
    """
    assert code(program).split() == attnspec.__all__


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_is_not_replaced_by_the_module_of_its_name(name):
    for first in (f"import attnspec.{name}", f"from attnspec.{name} import {name}", "import attnspec.multihead"):
        assert code(f"import attnspec\n{first}\nprint(attnspec.{name}.__name__)") == name


def test_names_of_functions_and_modules_meet_in_those_that_are_tested():
    modules = {file.stem for file in Path(attnspec.__file__).parent.glob("*.py")}
    meet = {name for name in attnspec.__all__ if name in modules and callable(getattr(attnspec, name))}
    assert meet == set(FUNCTIONS)


def test_names_are_those_that_type_checkers_see():
    (checked,) = (node for node in ast.parse(Path(attnspec.__file__).read_text()).body if isinstance(node, ast.If))
    seen = {
        alias.name: getattr(import_module(f"attnspec.{node.module}"), alias.name) if node.module else None
        for node in checked.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert set(seen) == set(attnspec.__all__)
    assert all(getattr(attnspec, name) is value for name, value in seen.items() if value is not None)


def test_star_imports_and_dir_have_every_public_name():
    names = code("from attnspec import *\nprint(*dir())").split()
    assert set(attnspec.__all__) <= set(names)
    assert set(attnspec.__all__) <= set(code("import attnspec\nprint(*dir(attnspec))").split())


def test_a_module_is_found_at_its_first_use_too():
    assert code("import attnspec\nprint(attnspec.masks.causal is attnspec.causal)") == "True"


def test_a_name_that_is_not_there_is_refused_by_name():
    with pytest.raises(AttributeError, match="module 'attnspec' has no attribute 'atention'"):
        _ = attnspec.atention
    assert not hasattr(attnspec, "__main__")  # which is there, and would run


def test_what_a_module_lacks_is_said_by_name():
    said = code(
        """
        import sys, attnspec
        sys.modules["json"] = None
        try:
            attnspec.MultiHeadParams
        except ModuleNotFoundError as error:
            print(error.name)
        """
    )
    assert said == "json"
