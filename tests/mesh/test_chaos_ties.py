"""Ties are told from other answers by a reference's logits."""

import pytest
import torch
from transformers import LlamaForCausalLM

from bench.agents.ties import Ids, Judge, Suspect, Verdict
from services.tokenizer.detokenize import TokenText
from tests.mesh.tiny_model import tiny_model

PROMPT = (70, 71, 72)
NEW = 12


@pytest.fixture
def model() -> LlamaForCausalLM:
    return tiny_model()


@pytest.fixture
def table(model: LlamaForCausalLM) -> TokenText:
    return TokenText([f"<{token}>".encode() for token in range(model.config.vocab_size)], 0)


def text(ids: Ids) -> str:
    return "".join(f"<{token}>" for token in ids)


@torch.inference_mode()
def greedy(model: LlamaForCausalLM, begin: Ids, rank: int = 0) -> Ids:
    """The rest of an answer that begins so; its first token is the one of this rank."""
    ids = begin
    while len(ids) < NEW:
        order = model(torch.tensor([[*PROMPT, *ids]])).logits[0, -1].argsort(descending=True, stable=True)
        ids = (*ids, int(order[rank if ids == begin else 0]))
    return ids


def judge(model: LlamaForCausalLM, table: TokenText, answer: str, right: Ids, whole: bool = True) -> Verdict:
    return Judge(model, table).judge(Suspect(PROMPT, NEW, answer, text(right), whole, "here"))


def test_the_reference_s_own_answer(model: LlamaForCausalLM, table: TokenText) -> None:
    right = greedy(model, ())
    assert judge(model, table, text(right), right).tie
    assert judge(model, table, text(right[:4]), right, whole=False).tie
    assert not judge(model, table, text(right[:4]), right).tie


@pytest.mark.parametrize("at", [0, 5, NEW - 1])
def test_another_token_is_no_tie(model: LlamaForCausalLM, table: TokenText, at: int) -> None:
    right = greedy(model, ())
    other = greedy(model, right[:at], rank=3)
    found = judge(model, table, text(other), right)
    assert not found.tie
    assert f"differs at token {at}" in found.told
    assert not judge(model, table, text(right), other).tie, "nor is it what may be expected"
    assert not judge(model, table, text(other[: at + 1]), right, whole=False).tie


def test_tokens_as_likely_as_each_other(model: LlamaForCausalLM, table: TokenText) -> None:
    right = greedy(model, ())
    twin = next(token for token in range(10, 100) if token not in right)
    with torch.no_grad():
        model.lm_head.weight[twin] = model.lm_head.weight[right[2]]
    found = judge(model, table, text(greedy(model, (*right[:2], twin))), right)
    assert found.tie
    assert "token 2" in found.told
