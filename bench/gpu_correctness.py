"""Greedy float32 tokens on a GPU: every scheduler, and the CPU engine, against HuggingFace on the same device.

    python -m bench.gpu_correctness OUT.json [--model SmolLM2-135M-Instruct | --architecture qwen3]
        [--forms resident host host-overlap]

A random model of four layers, heads in groups, of Llama's architecture or another; or one with its own weights, then
the prompts are cut from chats. Prompts in chunks of 128 that share steps with each other, and with decodes unless
`--mixed 0`; KV pages so few that requests wait, and are paused and evicted. HuggingFace reads each answer as a whole: a
token is wrong that isn't its choice after the tokens before.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PreTrainedModel

from bench.engine.chats import chats
from bench.engine.reference import Reference
from bench.gpu.requests import prompts_of
from bench.gpu.resident_client import Engine
from bench.gpu.resident_engine import Wanted, model_config
from bench.gpu_resident import FORMS
from services.common.paths import models_dir
from services.gpu_backend.engines.torch_engine import TorchEngine, TorchSettings
from services.gpu_backend.models.config import ModelConfig
from services.gpu_backend.models.llama import Llama
from services.gpu_backend.models.model import Model
from services.gpu_backend.models.random_weights import RandomWeights
from services.gpu_backend.models.registry import LoadedModel, load
from services.gpu_backend.models.variants import VARIANTS
from tests.gpu.engine import huggingface
from tests.gpu.engine.small_models import Driver, TensorSource, lane_pages

Prompts = list[NDArray[np.uint32]]

LAYERS, PAGES, CONTEXT = 4, 140, 8192
ENGINE: dict[str, Any] = {
    "layers": LAYERS, "small": True, "prefill_chunk": 128, "step_tokens": 512, "lanes": 32, "pages": PAGES,
    "max_context": CONTEXT,
}  # fmt: skip
CASES: dict[str, tuple[list[int], int]] = {
    "one of 8,180": ([8180], 12),
    "one at a time": ([5], 24),
    "page edges": ([1, 63, 64, 65, 127, 128, 129], 16),
    "32 at once": ([1 + 22 * i for i in range(32)], 24),
    "pages run out": ([320 + 6 * i for i in range(20)], 100),
}
"""Tokens of each prompt, tokens of each answer."""


class Recorded(RandomWeights):
    """Keeps what it drew, by name."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config, torch.float32, torch.device("cuda"))
        self.tensors: dict[str, torch.Tensor] = {}

    def read(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        self.tensors[name] = super().read(name, shape)
        return self.tensors[name].clone()


def drawn(config: ModelConfig) -> tuple[PreTrainedModel, Model, Callable[[Sequence[int]], Prompts]]:
    """HuggingFace's, ours on the CPU, and prompts of given lengths."""
    source = Recorded(config)
    Llama(source, torch.float32, torch.device("cuda"), lambda name, elements: None)
    reference = huggingface.model_of(config)
    reference.load_state_dict(source.tensors)
    tensors = TensorSource(config, {name: tensor.cpu() for name, tensor in source.tensors.items()})
    ours = Llama(tensors, torch.float32, torch.device("cpu"), lambda name, elements: None)
    return reference, ours, lambda lengths: prompts_of(lengths, config.vocab, 3)


def real(folder: Path) -> tuple[PreTrainedModel, Model, Callable[[Sequence[int]], Prompts]]:
    """As `drawn`; each prompt begins elsewhere in the chats."""
    reference = Reference(folder)
    text = np.array([token for _, chat in chats() for token in reference.encode(chat)], np.uint32)

    def prompts(lengths: Sequence[int]) -> Prompts:
        return [np.resize(np.roll(text, -997 * i), length) for i, length in enumerate(lengths)]

    return reference.model, load(folder).model, prompts


def on_the_cpu(model: Model, prompts: Prompts, count: int) -> list[list[int]]:
    engine = TorchEngine(LoadedModel(model, "r"), TorchSettings())
    lists = [[int(token) for token in prompt] for prompt in prompts]
    wide = lane_pages(lists, count)
    engine.allocate(wide * len(prompts), 32, 512)
    driver = Driver(
        engine, lanes=len(prompts), pages=wide * len(prompts), lane_pages=wide, step_tokens=512, seed=3
    )  # fmt: skip
    return driver.generate(lists, count, 128)


class Judge:
    """Counts what differs from HuggingFace's choices, and says by how little it preferred them."""

    def __init__(self, reference: PreTrainedModel, found: dict[str, Any]) -> None:
        self._reference, self._found = reference, found
        self._choices: dict[tuple[int, ...], list[int]] = {}

    def compare(self, by: str, case: str, prompts: Prompts, answers: list[list[int]]) -> None:
        wrong = 0
        for prompt, answer in zip(prompts, answers, strict=True):
            ids = [int(token) for token in prompt]
            key = (*ids, *answer)
            if key not in self._choices:
                self._choices[key] = huggingface.choices(self._reference, ids, answer)
            chosen = self._choices[key]
            if chosen == answer:
                continue
            at = next(i for i, (a, b) in enumerate(zip(answer, chosen, strict=True)) if a != b)
            gap = huggingface.preference(self._reference, ids + answer[:at], chosen[at], answer[at])
            self._found["differences"].append({"by": by, "case": case, "prompt": len(ids), "token": at, "logits": gap})
            wrong += 1
        distinct = len({token for answer in answers for token in answer})
        self._found["cases"].setdefault(case, {})[by] = {
            "requests": len(answers), "tokens": sum(map(len, answers)), "wrong_requests": wrong, "distinct": distinct,
        }  # fmt: skip
        self._found["wrong"] += wrong
        self._found["compared"] += sum(map(len, answers))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--forms", nargs="+", choices=FORMS, default=list(FORMS))
    parser.add_argument("--model", default="", help="its own weights; else random ones")
    parser.add_argument("--architecture", choices=sorted(VARIANTS), default="llama", help="of the random model")
    parser.add_argument("--mixed", type=int, default=192, help="tokens of steps that prompts and decodes share")
    given = parser.parse_args()
    began = time.perf_counter()
    folder = models_dir() / given.model if given.model else None
    wanted = ENGINE | {
        "mixed_tokens": given.mixed, "folder": str(folder or ""), "architecture": given.architecture,
    }  # fmt: skip
    found: dict[str, Any] = {
        "gpu": torch.cuda.get_device_name(), "model": given.model or f"random {given.architecture}",
        "mixed_tokens": given.mixed, "cases": {}, "wrong": 0, "compared": 0, "differences": [],
    }  # fmt: skip
    reference, ours, prompts_for = real(folder) if folder else drawn(
        model_config(Wanted(form="", stamps="", name="", deadline_s=0, **wanted))
    )  # fmt: skip
    judge = Judge(reference.to("cuda"), found)
    prompts = {name: prompts_for(lengths) for name, (lengths, _) in CASES.items()}

    def keep(done: str) -> None:
        found["total_s"] = round(time.perf_counter() - began, 1)
        given.out.write_text(json.dumps(found, indent=1) + "\n")
        print(done, found.get(done, ""), "wrong so far", found["wrong"], "of tokens", found["compared"],
              found["differences"][-3:], f"{found['total_s']} s", flush=True)  # fmt: skip

    for form in given.forms:
        with tempfile.TemporaryDirectory() as own, Engine(form, Path(own), deadline_s=100, **wanted) as engine:
            answers = {name: engine.run(prompts[name], count).tokens for name, (_, count) in CASES.items()}
        for name, tokens in answers.items():
            judge.compare(form, name, prompts[name], tokens)
        names = ("pauses", "preemptions", "prefill_launches", "mixed_launches", "refused")
        found[form] = {name: engine.last[name] for name in names}
        keep(form)
    for name, (_, count) in CASES.items():
        judge.compare("CPU engine", name, prompts[name], on_the_cpu(ours, prompts[name], count))
    keep("CPU engine")
    print(json.dumps(found["cases"]))


if __name__ == "__main__":
    main()
