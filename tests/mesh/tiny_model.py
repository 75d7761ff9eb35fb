"""A model of three small layers with random weights, as a GGUF file with a byte-level vocabulary."""

from pathlib import Path

import gguf
from transformers import PreTrainedModel

from tests.gpu_backend.models.conftest import gguf_tensors, tiny_decoder, write_gguf
from tests.tokenizer.conftest import toy_metadata

NAME = "tiny"
CONTEXT = 2048


def tiny_model(context: int = CONTEXT, architecture: str = "llama") -> PreTrainedModel:
    """The same weights each time."""
    vocabulary = len(toy_metadata()["tokenizer.ggml.tokens"])
    return tiny_decoder(architecture, vocab_size=vocabulary, num_hidden_layers=3, max_position_embeddings=context)


def make_tiny_model(models: Path, context: int = CONTEXT, architecture: str = "llama") -> int:
    """Writes the folder `tiny` under `models`; answers the bytes of a Full Block, in float32."""
    metadata = toy_metadata()
    tokens, types = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"]

    def edit(writer: gguf.GGUFWriter) -> None:
        writer.add_tokenizer_model(metadata["tokenizer.ggml.model"])
        writer.add_tokenizer_pre(metadata["tokenizer.ggml.pre"])
        writer.add_token_types(types)
        writer.add_token_merges(metadata["tokenizer.ggml.merges"])
        writer.add_bos_token_id(metadata["tokenizer.ggml.bos_token_id"])
        writer.add_eos_token_id(metadata["tokenizer.ggml.eos_token_id"])
        writer.add_add_bos_token(False)
        writer.kv_data[0].pop("tokenizer.ggml.tokens")
        writer.add_token_list(tokens)

    model = tiny_model(context, architecture)
    (models / NAME).mkdir(parents=True)
    write_gguf(models / NAME / f"{NAME}.gguf", model, gguf_tensors(model), edit=edit)
    config = model.config
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    width = head * config.num_key_value_heads
    return int(config.num_hidden_layers * 2 * 64 * width * 4)
