"""The environments: frameworks, BLAS kernels, instruction sets and numbers of threads that a process can be given."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Literal

Mode = Literal["eager", "jit", "op by op"]


@dataclass(frozen=True)
class Environment:
    """A process: which backend, how it calls, and what it is started with.

    share
        One problem in so many is computed, where computing one takes long.
    """

    name: str
    backend: str
    mode: Mode = "eager"
    threads: int = 1
    mkldnn: bool = True
    device: str = ""
    share: int = 1
    variables: Mapping[str, str] = field(default_factory=dict)

    @property
    def lacks(self) -> str | None:
        """The package that is not installed, or the device that is not there, if any."""
        package = {"strict": "array_api_strict"}.get(self.backend, self.backend)
        if not find_spec(package):
            return package
        return None if not self.device or _has_cuda(self) else "CUDA device"


def environments() -> list[Environment]:
    """All of them, the one that others are compared with first."""
    return [
        Environment("numpy 1 thread", "numpy"),
        *(
            Environment(f"numpy OpenBLAS {kernel}", "numpy", variables={"OPENBLAS_CORETYPE": coretype})
            for coretype, kernel in openblas_kernels().items()
        ),
        Environment("numpy 2 threads", "numpy", threads=2),
        Environment("numpy no SIMD", "numpy", variables={"NPY_DISABLE_CPU_FEATURES": " ".join(simd_features())}),
        Environment("array-api-strict", "strict"),
        Environment("torch 1 thread", "torch"),
        Environment("torch 2 threads", "torch", threads=2),
        Environment("torch no mkldnn", "torch", mkldnn=False),
        Environment("torch no SIMD", "torch", variables={"ATEN_CPU_CAPABILITY": "default"}),
        Environment(
            "torch, AVX2", "torch", variables={"ATEN_CPU_CAPABILITY": "avx2", "MKL_ENABLE_INSTRUCTIONS": "AVX2"}
        ),
        Environment("jax eager", "jax", threads=2),
        Environment("jax op by op", "jax", "op by op", share=16),
        Environment("jax.jit", "jax", "jit", threads=2),
        Environment("jax.jit SSE4.2", "jax", "jit", variables={"XLA_FLAGS": "--xla_cpu_max_isa=SSE4_2"}),
        Environment("jax.jit AVX2", "jax", "jit", variables={"XLA_FLAGS": "--xla_cpu_max_isa=AVX2"}),
        Environment("torch cuda", "torch", device="cuda:0"),
        Environment("jax cuda", "jax", "jit", device="cuda:0", variables={"JAX_PLATFORMS": "cuda"}),
    ]


def process_variables(environment: Environment) -> dict[str, str]:
    """What its process is started with."""
    threads = str(environment.threads)
    variables = {
        **os.environ, "OPENBLAS_NUM_THREADS": threads, "OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads,
        "JAX_PLATFORMS": os.environ.get("JAX_PLATFORMS", "cpu"), **environment.variables,
    }  # fmt: skip
    # A program that was compiled for one instruction set is none for another.
    cache = variables.get("JAX_COMPILATION_CACHE_DIR")
    if cache:
        variables["JAX_COMPILATION_CACHE_DIR"] = os.path.join(cache, re.sub(r"\W+", "-", environment.name))
    return variables


def _has_cuda(environment: Environment) -> bool:
    """Whether the framework finds one, asked in a process of its own."""
    code = {"torch": "import torch; torch.zeros(1, device='cuda')", "jax": "import jax; jax.devices('cuda')"}
    command = [sys.executable, "-c", code[environment.backend]]
    variables = {**os.environ, **environment.variables}
    return subprocess.run(command, env=variables, capture_output=True, check=False).returncode == 0


_CORETYPES = ("Prescott", "Nehalem", "Sandybridge", "Haswell", "Zen", "SkylakeX", "Cooperlake", "SapphireRapids",
              "ARMV8", "NEOVERSEN1", "NEOVERSEV1")  # fmt: skip


def openblas_kernels() -> dict[str, str]:
    """Names for OPENBLAS_CORETYPE that give a kernel of their own on this processor, and what OpenBLAS calls it."""
    found: dict[str, str] = {}
    for coretype in _CORETYPES:
        variables = {**os.environ, "OPENBLAS_CORETYPE": coretype, "OPENBLAS_VERBOSE": "2"}
        done = subprocess.run(
            [sys.executable, "-c", "import numpy"], env=variables, capture_output=True, text=True, check=False
        )
        core = re.search(r"^Core: (\w+)", done.stdout + done.stderr, re.MULTILINE)
        # What the processor lacks is answered by another kernel: then its own name gives that.
        if done.returncode == 0 and core and core[1] not in found.values():
            found[coretype] = core[1]
    return found


def simd_features() -> list[str]:
    """What NumPy found in this processor beyond what it was built for."""
    import numpy as np

    return list(np.show_config(mode="dicts")["SIMD Extensions"].get("found", []))
