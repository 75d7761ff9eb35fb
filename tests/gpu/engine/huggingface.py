"""HuggingFace's Llama of a shape, and its greedy tokens: what ours are compared with."""

from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from services.gpu_backend.models.config import ModelConfig


def llama(config: ModelConfig, **changes: Any) -> LlamaForCausalLM:
    """With random weights in float32, on the CPU; `changes` are LlamaConfig's."""
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=config.vocab,
            hidden_size=config.hidden,
            intermediate_size=config.intermediate,
            num_hidden_layers=config.layers,
            num_attention_heads=config.heads,
            num_key_value_heads=config.kv_heads,
            head_dim=config.head_dim,
            max_position_embeddings=config.max_context,
            rms_norm_eps=config.rms_epsilon,
            rope_parameters={"rope_type": "default", "rope_theta": config.rope_theta},
            tie_word_embeddings=False,
            **changes,
        )
    ).eval()


@torch.inference_mode()
def greedy(made: LlamaForCausalLM, prompt: list[int], count: int) -> list[int]:
    """`count` tokens of one prompt, on the model's device."""
    answer = made(torch.tensor([prompt], device=made.device), use_cache=True)
    tokens = [int(answer.logits[0, -1].argmax())]
    while len(tokens) < count:
        last = torch.tensor([[tokens[-1]]], device=made.device)
        answer = made(last, past_key_values=answer.past_key_values, use_cache=True)
        tokens.append(int(answer.logits[0, -1].argmax()))
    return tokens


@torch.inference_mode()
def choices(made: LlamaForCausalLM, prompt: list[int], answer: list[int]) -> list[int]:
    """Greedily, after the prompt and after each token of the answer but the last: equal to `answer` if and only if
    that is what `greedy` gives."""
    ids = torch.tensor([prompt + answer[:-1]], device=made.device)
    chosen: list[int] = made(ids, use_cache=False, logits_to_keep=len(answer)).logits[0].argmax(-1).tolist()
    return chosen


@torch.inference_mode()
def preference(made: LlamaForCausalLM, tokens: list[int], one: int, other: int) -> float:
    """By how much the logit of `one` is above that of `other` after these tokens."""
    logits = made(torch.tensor([tokens], device=made.device), use_cache=False, logits_to_keep=1).logits[0, 0]
    return float(logits[one] - logits[other])
