"""Random models of Llama's kind, and a driver that generates with any `Engine` over scattered pages."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from services.gpu_backend.engine import PAGE_TOKENS, STEP_SEQUENCE, Engine, StepKind, StepView
from services.gpu_backend.models.config import ModelConfig
from services.gpu_backend.models.llama import Llama


def small_config(**changes: Any) -> ModelConfig:
    shape: dict[str, Any] = {
        "architecture": "llama", "layers": 4, "hidden": 512, "intermediate": 1024, "heads": 8, "kv_heads": 2,
        "head_dim": 64, "vocab": 4096, "max_context": 16384, "rms_epsilon": 1e-5, "rope_theta": 500000.0,
    }  # fmt: skip
    return ModelConfig(**(shape | changes))


class RandomSource:
    """A WeightSource whose tensors are drawn where they are needed, from a seed."""

    def __init__(self, config: ModelConfig, device: torch.device, dtype: torch.dtype, seed: int = 0) -> None:
        self._config = config
        self._dtype = dtype
        self._generator = torch.Generator(device=device).manual_seed(seed)

    @property
    def config(self) -> ModelConfig:
        return self._config

    def has(self, name: str) -> bool:
        return name == "lm_head.weight"

    def read(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        device = self._generator.device
        drawn = torch.randn(shape, generator=self._generator, device=device, dtype=self._dtype)
        if len(shape) == 1:
            return 1 + 0.1 * drawn
        # 0.7: with larger ones layer upon layer of random weights amplifies rounding beyond a hundredth, in torch too
        return drawn if name == "model.embed_tokens.weight" else drawn.mul_(0.7 / shape[1] ** 0.5)


class TensorSource:
    """A WeightSource over tensors by name: a HuggingFace state_dict, say."""

    def __init__(self, config: ModelConfig, tensors: dict[str, torch.Tensor]) -> None:
        self._config = config
        self._tensors = tensors

    @property
    def config(self) -> ModelConfig:
        return self._config

    def has(self, name: str) -> bool:
        return name in self._tensors

    def read(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        assert self._tensors[name].shape == shape, name
        return self._tensors[name].clone()


def random_model(config: ModelConfig, dtype: torch.dtype, device: str, seed: int = 0) -> Llama:
    source = RandomSource(config, torch.device(device), dtype, seed)
    return Llama(source, dtype, torch.device(device), lambda name, elements: None)


class Driver:
    """Generates for some sequences at once. Each lane's pages are scattered over the pool."""

    def __init__(self, engine: Engine, *, lanes: int, pages: int, lane_pages: int, step_tokens: int, seed: int) -> None:
        self._engine = engine
        self._step_tokens = step_tokens
        rng = np.random.default_rng(seed)
        used = rng.permutation(pages)[: lanes * lane_pages]
        assert len(used) == lanes * lane_pages, "too few pages"
        self.tables = used.reshape(lanes, lane_pages).astype(np.uint32)
        self._lanes = lanes
        self._rng = rng

    def step(self, kind: StepKind, rows: Sequence[tuple[int, int, Sequence[int], int]], **sampling: Any) -> list[int]:
        """rows: (lane, position, tokens, sample); returns out_tokens."""
        sequences = np.zeros(len(rows), STEP_SEQUENCE)
        tokens: list[int] = []
        for at, (lane, position, new, sample) in zip(sequences, rows, strict=True):
            at["lane"], at["position"], at["token_count"], at["sample"] = lane, position, len(new), sample
            at["token_begin"], at["slot"], at["top_p"] = len(tokens), lane, 1.0
            tokens.extend(new)
        for name, values in sampling.items():
            sequences[name] = values
        out = np.zeros(len(rows), np.uint32)
        taken = np.asarray(tokens, np.uint32)
        self._engine.step(StepView(kind, len(rows), len(tokens), sequences, taken, self.tables, out))
        return [int(token) for token in out]

    def generate(self, prompts: Sequence[Sequence[int]], count: int, chunk: int) -> list[list[int]]:
        """Greedy: `count` tokens a prompt, prefilled in chunks of at most `chunk` tokens that share steps."""
        lanes = [int(lane) for lane in self._rng.permutation(self._lanes)[: len(prompts)]]
        done = [0] * len(prompts)
        outputs: list[list[int]] = [[] for _ in prompts]
        while any(done[i] < len(prompt) for i, prompt in enumerate(prompts)):
            rows, owners, room = [], [], self._step_tokens
            for i, prompt in enumerate(prompts):
                take = min(chunk, room, len(prompt) - done[i])
                if take > 0:
                    rows.append(
                        (lanes[i], done[i], prompt[done[i] : done[i] + take], int(done[i] + take == len(prompt)))
                    )
                    owners.append(i)
                    room -= take
            for i, row, token in zip(owners, rows, self.step(StepKind.PREFILL, rows), strict=True):
                done[i] += len(row[2])
                if row[3]:
                    outputs[i].append(token)
        for _ in range(count - 1):
            rows = [(lanes[i], len(p) + len(outputs[i]) - 1, outputs[i][-1:], 1) for i, p in enumerate(prompts)]
            for output, token in zip(outputs, self.step(StepKind.DECODE, rows), strict=True):
                output.append(token)
        return outputs

    def generate_mixed(self, prompts: Sequence[Sequence[int]], count: int, chunk: int) -> list[list[int]]:
        """As `generate`, but prompts come in one after the other, and those that run get a token in every step of
        another one's chunk: as many as fit behind it, those with the fewest tokens first."""
        lanes = [int(lane) for lane in self._rng.permutation(self._lanes)[: len(prompts)]]
        outputs: list[list[int]] = [[] for _ in prompts]
        done = [0] * len(prompts)
        while any(len(output) < count for output in outputs):
            entering = next((i for i, prompt in enumerate(prompts) if done[i] < len(prompt)), None)
            rows, owners = [], []
            if entering is not None:
                new = prompts[entering][done[entering] : done[entering] + chunk]
                done[entering] += len(new)
                rows.append(
                    (lanes[entering], done[entering] - len(new), new, int(done[entering] == len(prompts[entering])))
                )
                owners.append(entering)
            running = [i for i, output in enumerate(outputs) if 0 < len(output) < count]
            for i in sorted(running, key=lambda i: len(outputs[i]))[: self._step_tokens - sum(len(r[2]) for r in rows)]:
                rows.append((lanes[i], len(prompts[i]) + len(outputs[i]) - 1, outputs[i][-1:], 1))
                owners.append(i)
            kind = StepKind.DECODE if entering is None else StepKind.PREFILL
            for i, row, token in zip(owners, rows, self.step(kind, rows), strict=True):
                if row[3]:
                    outputs[i].append(token)
        return outputs


def lane_pages(prompts: Sequence[Sequence[int]], count: int) -> int:
    return -(-(max(map(len, prompts)) + count) // PAGE_TOKENS)
