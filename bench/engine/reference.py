"""A model as transformers runs it: float32, its own dequantizing, greedy."""

import functools
from pathlib import Path

import gguf
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint
from transformers.utils import logging


class Reference:
    """Holds transformers' model and tokenizer of a folder: a GGUF file, or config.json and *.safetensors.

    `from_pretrained(gguf_file=...)` would need the accelerate package; the same reader and the same
    weight conversion are called here without it.
    """

    def __init__(self, folder: Path) -> None:
        logging.disable_progress_bar()
        if files := sorted(folder.glob("*.gguf")):
            self._load_gguf(folder, files[0])
        else:
            self.tokenizer = AutoTokenizer.from_pretrained(str(folder))
            self.model = AutoModelForCausalLM.from_pretrained(str(folder), dtype=torch.float32)
        self.model.eval()
        self.model.generation_config.eos_token_id = None  # go on: every prompt gives as many tokens

    def _load_gguf(self, folder: Path, file: Path) -> None:
        gguf.GGUFReader = functools.cache(gguf.GGUFReader)  # transformers parses the file three times, 4 s each
        self.tokenizer = AutoTokenizer.from_pretrained(str(folder), gguf_file=file.name)
        config = AutoConfig.from_pretrained(str(folder), gguf_file=file.name)
        self.model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        loaded = load_gguf_checkpoint(str(file), True, self.model, torch.float32)
        missing = self.model.load_state_dict(loaded["tensors"], strict=False).missing_keys
        if missing not in ([], ["lm_head.weight"]):
            raise RuntimeError(f"transformers did not find {missing}")
        self.model.tie_weights()

    def encode(self, chat: list[dict[str, str]]) -> list[int]:
        ids: list[int] = self.tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)
        return ids

    @torch.inference_mode()
    def greedy(self, prompt: list[int], count: int) -> tuple[list[int], list[torch.Tensor]]:
        """`count` tokens, end tokens among them, and the logits that each was chosen by."""
        config = GenerationConfig(
            max_new_tokens=count, do_sample=False, output_logits=True, return_dict_in_generate=True, pad_token_id=2
        )
        ids = torch.tensor([prompt])
        out = self.model.generate(ids, attention_mask=torch.ones_like(ids), generation_config=config)
        return out.sequences[0, len(prompt) :].tolist(), [row[0] for row in out.logits]
