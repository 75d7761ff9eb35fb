"""What the tokenizer's tests share: a small model of its own, and the default one where it is pulled."""

import json
from pathlib import Path
from typing import Any

import pytest

from hostless.v1 import frontend_pb2 as pb
from services.common.paths import models_dir
from services.tokenizer import encoders, hf_encoder, model_text
from services.tokenizer.model_text import ModelText, Templates

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CONTROL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
WORDS = ["he", "ll", "hell", "hello", "Ġw", "or", "Ġwor", "ld", "Ġworld", "ĊĊ"]
MERGES = ["h e", "l l", "he ll", "hell o", "Ġ w", "o r", "Ġw or", "l d", "Ġwor ld", "Ċ Ċ"]


def toy_metadata(**changes: Any) -> dict[str, Any]:
    """GGUF metadata of a byte-level vocabulary: 3 control tokens, the 256 bytes, a few words."""
    letters = list(hf_encoder._letters())
    tokens = [*CONTROL, *letters, *WORDS]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3] * len(CONTROL) + [1] * (len(tokens) - len(CONTROL)),
        "tokenizer.ggml.merges": MERGES,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.add_bos_token": False,
        **changes,
    }


def toy_model(template: str = CHATML, **changes: Any) -> ModelText:
    return ModelText(encoders.from_gguf(toy_metadata(**changes)), Templates(template))


def chat_of(messages: Any, **more: Any) -> pb.Chat:
    return pb.Chat(messages_json=json.dumps(messages), **more)


@pytest.fixture(name="toy_metadata")
def _toy_metadata() -> Any:
    return toy_metadata


@pytest.fixture(name="toy_model")
def _toy_model() -> Any:
    """Makes a toy ModelText: toy_model(template, **metadata changes)."""
    return toy_model


@pytest.fixture(scope="session")
def default_folder() -> Path:
    folder = models_dir() / "SmolLM2-135M-Instruct"
    if not folder.is_dir():
        pytest.skip(f"needs the default model in {folder}: run `hostless pull`")
    return folder


@pytest.fixture(scope="session")
def default_model(default_folder: Path) -> ModelText:
    return model_text.load(default_folder)
