"""HuggingFace's model of a shape, and its greedy tokens: what ours are compared with."""

from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig, PreTrainedModel

from services.gpu_backend.models.config import ModelConfig


def model_of(config: ModelConfig, **changes: Any) -> PreTrainedModel:
    """With random weights in float32, on the CPU; `changes` are of HuggingFace's config."""
    made: PreTrainedModel = AutoModelForCausalLM.from_config(
        AutoConfig.for_model(
            config.architecture,
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
            pad_token_id=None,
            eos_token_id=None,
            **changes,
        ),
        dtype=torch.float32,
    ).eval()
    with torch.no_grad():  # made as ones and zeros, which would hide them
        for name, weight in made.named_parameters():
            if name.endswith(("q_norm.weight", "k_norm.weight")):
                weight.uniform_(0.5, 1.5)
            elif name.endswith("bias"):
                weight.uniform_(-1, 1)
    return made


@torch.inference_mode()
def greedy(made: PreTrainedModel, prompt: list[int], count: int) -> list[int]:
    """`count` tokens of one prompt, on the model's device."""
    ids = torch.tensor([prompt], device=made.device)
    how = GenerationConfig(max_new_tokens=count, do_sample=False, pad_token_id=0)
    whole = made.generate(ids, attention_mask=torch.ones_like(ids), generation_config=how)
    tokens: list[int] = whole[0, len(prompt) :].tolist()
    assert len(tokens) == count, "no token ends an answer"
    return tokens


@torch.inference_mode()
def choices(made: PreTrainedModel, prompt: list[int], answer: list[int]) -> list[int]:
    """Greedily, after the prompt and after each token of the answer but the last: equal to `answer` if and only if
    that is what `greedy` gives."""
    ids = torch.tensor([prompt + answer[:-1]], device=made.device)
    chosen: list[int] = made(ids, use_cache=False, logits_to_keep=len(answer)).logits[0].argmax(-1).tolist()
    return chosen


@torch.inference_mode()
def preference(made: PreTrainedModel, tokens: list[int], one: int, other: int) -> float:
    """By how much the logit of `one` is above that of `other` after these tokens."""
    logits = made(torch.tensor([tokens], device=made.device), use_cache=False, logits_to_keep=1).logits[0, 0]
    return float(logits[one] - logits[other])
