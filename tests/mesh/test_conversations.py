"""A small part of bench/conversations.py, whole conversations with a model that needs no time."""

from pathlib import Path

import pytest

from bench.agents.turns import conversations
from bench.conversations import compare
from services.tokenizer.model_text import load
from tests.mesh.tiny_model import NAME, make_tiny_model

pytestmark = pytest.mark.slow  # meshes of six and eight processes that load torch


async def test_whoever_reads_the_tokens_are_those_of_one_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models = tmp_path / "models"
    monkeypatch.setenv("HOSTLESS_MODELS", str(models))
    make_tiny_model(models)
    text = load(models / NAME)
    talks = conversations(16, text)  # eight that share their first block, and eight that don't
    async for outcome in compare(tmp_path, NAME, talks, text, ["1P1D", "2P2D"], lambda: None):
        assert outcome.wrong == []
        assert outcome.whole_hits == outcome.turns
        assert sum(outcome.paths.values()) == outcome.turns
        assert all(outcome.paths[side] for side in ("prefill", "decode", "split"))
