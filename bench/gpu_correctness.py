"""Greedy tokens of a random float32 model on a GPU: every scheduler against HuggingFace and the CPU engine.

    python -m bench.gpu_correctness OUT.json [--forms resident host host-overlap]

Four layers, heads in groups; prompts in chunks of 128 that share steps with each other; KV pages so few that
requests wait, and are paused and evicted. HuggingFace generates one prompt at a time on the same device.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from bench.gpu_resident import FORMS
from bench.gpu_resident_client import Engine, prompts_of
from bench.gpu_resident_engine import RandomWeights, Wanted, model_config
from services.gpu_backend.engines.torch_engine import TorchEngine, TorchSettings
from services.gpu_backend.models.config import ModelConfig
from services.gpu_backend.models.llama import Llama
from services.gpu_backend.models.registry import LoadedModel
from tests.gpu.engine import huggingface
from tests.gpu.engine.small_models import Driver, TensorSource, lane_pages

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
        super().__init__(config, torch.float32)
        self.tensors: dict[str, torch.Tensor] = {}

    def read(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        self.tensors[name] = super().read(name, shape)
        return self.tensors[name].clone()


def on_the_cpu(
    config: ModelConfig, tensors: dict[str, torch.Tensor], prompts: list[NDArray[np.uint32]], count: int
) -> list[list[int]]:
    source = TensorSource(config, {name: tensor.cpu() for name, tensor in tensors.items()})
    model = Llama(source, torch.float32, torch.device("cpu"), lambda name, elements: None)
    engine = TorchEngine(LoadedModel(model, "r"), TorchSettings())
    lists = [[int(token) for token in prompt] for prompt in prompts]
    wide = lane_pages(lists, count)
    engine.allocate(wide * len(prompts), 32, 512)
    driver = Driver(
        engine, lanes=len(prompts), pages=wide * len(prompts), lane_pages=wide, step_tokens=512, seed=3
    )  # fmt: skip
    return driver.generate(lists, count, 128)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--forms", nargs="+", choices=FORMS, default=list(FORMS))
    given = parser.parse_args()
    began = time.perf_counter()
    config = model_config(Wanted(form="", stamps="", name="", deadline_s=0, **ENGINE))
    source = Recorded(config)
    Llama(source, torch.float32, torch.device("cuda"), lambda name, elements: None)
    reference = huggingface.llama(config)
    reference.load_state_dict(source.tensors)
    reference.to("cuda")
    found: dict[str, Any] = {"gpu": torch.cuda.get_device_name(), "cases": {}, "wrong": 0, "compared": 0}
    prompts = {name: prompts_of(lengths, config.vocab, 3) for name, (lengths, _) in CASES.items()}
    expected = {
        name: [
            huggingface.greedy(reference, [int(token) for token in prompt], CASES[name][1]) for prompt in prompts[name]
        ]
        for name in CASES
    }
    print(f"HuggingFace has answered after {time.perf_counter() - began:.1f} s", flush=True)

    def compare(by: str, name: str, tokens: list[list[int]]) -> None:
        wrong = sum(a != b for a, b in zip(tokens, expected[name], strict=True))
        distinct = len({token for answer in expected[name] for token in answer})
        found["cases"].setdefault(name, {})[by] = {
            "requests": len(tokens), "tokens": sum(map(len, tokens)), "wrong_requests": wrong, "distinct": distinct,
        }  # fmt: skip
        found["wrong"] += wrong
        found["compared"] += sum(map(len, tokens))

    for name, (_, count) in CASES.items():
        compare("CPU engine", name, on_the_cpu(config, source.tensors, prompts[name], count))
    print(f"the CPU engine has answered after {time.perf_counter() - began:.1f} s", flush=True)
    for form in given.forms:
        with (
            tempfile.TemporaryDirectory() as folder,
            Engine(form, Path(folder), deadline_s=100, **ENGINE) as engine,
        ):
            for name, (_, count) in CASES.items():
                compare(form, name, engine.run(prompts[name], count).tokens)
        found[form] = {name: engine.last[name] for name in ("pauses", "preemptions", "prefill_launches", "refused")}
        found["total_s"] = round(time.perf_counter() - began, 1)
        given.out.write_text(json.dumps(found, indent=1) + "\n")
        print(form, found[form], "wrong so far", found["wrong"], "of tokens", found["compared"], flush=True)
    print(json.dumps(found["cases"]))


if __name__ == "__main__":
    main()
