"""What the tests of the command line and of the model share: the installed backends, the installed model."""

from __future__ import annotations

import os
from types import ModuleType

import pytest

from attnspec import minilm, registry
from attnspec.backend import VARIABLE
from attnspec.errors import MissingModelError

INSTALLED = [name for name in registry.registered() if isinstance(registry.status(name), ModuleType)]


CHOSEN = os.environ.get(VARIABLE)


@pytest.fixture(params=[name for name in INSTALLED if CHOSEN in (None, "", name)])
def name(request: pytest.FixtureRequest) -> str:
    """The name of an installed backend; of the one that ATTNSPEC_BACKEND names, if it names one."""
    return request.param


@pytest.fixture
def installed() -> list[str]:
    """The names of all installed backends."""
    return INSTALLED


@pytest.fixture(scope="session")
def weights() -> None:
    """Skip where the model is not installed."""
    try:
        minilm.tokenize([])
        minilm._file("model.safetensors")
    except MissingModelError as error:
        pytest.skip(str(error))
