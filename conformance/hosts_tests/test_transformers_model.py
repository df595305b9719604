"""The example for transformers, with attention counted: a model that silently keeps its own asks for nothing."""

from __future__ import annotations

import runpy
from pathlib import Path

import torch

import attnspec
from attnspec.integrations import transformers as integration

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "hosts" / "transformers_model.py"


def test_every_layer_of_every_call_asks_attnspec(monkeypatch):
    asked = []

    def counted(*arrays, **options):
        asked.append(options)
        return attnspec.attention(*arrays, **options)

    monkeypatch.setattr(integration, "attention", counted)
    found = runpy.run_path(str(EXAMPLE))
    layers, steps = found["config"].num_hidden_layers, found["written"].shape[1] - found["tokens"].shape[1]
    assert len(asked) == layers * (1 + steps)

    model, eager = found["model"], found["eager"]
    with torch.no_grad():
        model(found["tokens"])
        assert len(asked) == layers * (2 + steps)
        eager(found["tokens"])
        model.set_attn_implementation("sdpa")
        model(found["tokens"])
    assert len(asked) == layers * (2 + steps)
