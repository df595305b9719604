"""What only JAX can get wrong: shardings, devices, 64-bit numbers switched off, recompilation."""

from __future__ import annotations

import os
import subprocess
import sys
from textwrap import dedent


def run(code: str, **environment: str) -> str:
    """What a process of its own prints: the number of devices and the widths are settled at the first computation."""
    done = subprocess.run(
        [sys.executable, "-c", dedent(code)],
        env={**os.environ, **environment}, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.strip()


def test_sharded_over_batch_or_heads_no_device_talks_to_another() -> None:
    """An Explicit mesh makes each hidden gather an error, the compiled program of an Auto one lists them."""
    out = run(
        """
        import re
        import jax, numpy as np, attnspec
        from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

        talk = re.compile(r" (all-gather|all-reduce|all-to-all|collective-permute|reduce-scatter)(?:-start)?\\(")
        rng = np.random.default_rng(0)
        q, k, v = (rng.standard_normal((4, 4, 600, 8)).astype("float32") for _ in range(3))
        expected = attnspec.attention(q, k, v, mask=attnspec.causal())
        function = jax.jit(lambda q, k, v: attnspec.attention(q, k, v, mask=attnspec.causal()))
        for kind in (AxisType.Auto, AxisType.Explicit):
            mesh = jax.make_mesh((4,), ("x",), axis_types=(kind,))
            for spec in (P("x"), P(None, "x")):
                arrays = [jax.device_put(a, NamedSharding(mesh, spec)) for a in (q, k, v)]
                with jax.set_mesh(mesh):
                    compiled = function.lower(*arrays).compile()
                    out = compiled(*arrays)
                assert not talk.findall(compiled.as_text()), (kind, spec)
                assert tuple(out.sharding.spec)[: len(spec)] == tuple(spec), out.sharding
                assert np.abs(np.asarray(out) - expected).max() < 1e-5
        print("ok")
        """,
        XLA_FLAGS="--xla_force_host_platform_device_count=4",
    )
    assert out == "ok"


def test_what_is_made_lies_on_the_device_that_the_arrays_are_bound_to() -> None:
    out = run(
        """
        import jax, jax.numpy as jnp, attnspec
        second = jax.devices()[1]
        x = jax.device_put(jnp.ones((2, 3, 4)), second)
        params = attnspec.MultiHeadParams.init(attnspec.random.key(0), model_width=4, heads=2, like=x)
        made = [
            attnspec.attention(x, x, x, mask=attnspec.causal(), dropout=attnspec.Dropout(0.25, attnspec.random.key(0))),
            attnspec.random.normal(attnspec.random.key(0), (3,), like=x), params.wq, params.bo,
            attnspec.Cache.of(params, capacity=3).k, attnspec.multi_head_attention(params, x),
        ]
        print(all(a.devices() == {second} for a in made))
        """,
        XLA_FLAGS="--xla_force_host_platform_device_count=2",
    )
    assert out == "True"


def test_float32_needs_no_64_bit_numbers_and_draws_the_same_bits() -> None:
    code = """
        import jax, jax.numpy as jnp, numpy as np, attnspec
        x = jnp.linspace(-1, 1, 24, dtype=jnp.float32).reshape(2, 3, 4)
        seed = 2**31 + 5
        rng = attnspec.random.key(seed)
        y = attnspec.attention(x, x, x, mask=attnspec.causal(), dropout=attnspec.Dropout(0.25, rng))
        bits = attnspec.random.bits(rng, (3,), like=x)
        theirs = np.asarray(jax.random.bits(jax.random.key(seed), (3,), jnp.uint32)).view(np.int32)
        same = (theirs == np.asarray(bits)).all()
        print(y.dtype, bool(same), np.asarray(y).astype(np.float64).round(5).tolist(), np.asarray(bits).tolist())
        """
    assert run(code, JAX_ENABLE_X64="0") == run(code, JAX_ENABLE_X64="1")


def test_float64_is_refused_while_it_is_off() -> None:
    out = run(
        """
        from attnspec.backend import jax as backend
        from attnspec.errors import DTypeError
        try:
            backend.asarray([1.0], dtype="float64")
        except DTypeError as error:
            print("jax_enable_x64" in str(error))
        backend.enable("float64")
        print(backend.asarray([1.0], dtype="float64").dtype)
        """,
        JAX_ENABLE_X64="0",
    )
    assert out.split() == ["True", "float64"]


def test_a_decoding_step_with_an_array_length_is_compiled_once() -> None:
    out = run(
        """
        import jax, jax.numpy as jnp, attnspec
        params = attnspec.MultiHeadParams.init(attnspec.random.key(0), model_width=8, heads=2, like=jnp)
        empty = attnspec.Cache.of(params, capacity=5)
        cache = attnspec.Cache(empty.k, empty.v, jnp.asarray(0))
        compiled = []

        @jax.jit
        def step(x, cache):
            compiled.append(1)
            return attnspec.multi_head_attention_with_cache(params, x, cache, rotary=attnspec.Rotary())

        x = attnspec.random.normal(attnspec.random.key(1), (5, 8), like=jnp)
        rows = []
        for n in range(5):
            y, cache = step(x[n : n + 1], cache)
            rows.append(y)
        whole = attnspec.multi_head_attention(params, x, mask=attnspec.causal(), rotary=attnspec.Rotary())
        print(len(compiled), bool(abs(jnp.concatenate(rows) - whole).max() < 1e-5))
        """
    )
    assert out == "1 True"


def test_nothing_starts_jax_before_an_array_comes() -> None:
    """`jax.distributed.initialize` has to come before that, and may come after masks and keys were made."""
    out = run(
        """
        import jax, attnspec
        from attnspec.backend import jax as backend
        from jax._src.xla_bridge import backends_are_initialized

        attnspec.causal() & attnspec.padding(3), attnspec.random.key(0), attnspec.alibi(4)
        print(backends_are_initialized())
        attnspec.attention(*(backend.asarray([[1.0]]) for _ in range(3)))
        print(backends_are_initialized())
        """
    )
    assert out.split() == ["False", "True"]


def test_forget_drops_the_programs_that_are_compiled() -> None:
    out = run(
        """
        import jax
        from attnspec.backend import jax as backend

        double = jax.jit(lambda x: x + x)
        double(1.0)
        print(double._cache_size())
        backend.forget()
        print(double._cache_size())
        """
    )
    assert out.split() == ["1", "0"]
