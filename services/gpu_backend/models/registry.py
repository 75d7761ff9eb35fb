"""From a model folder to a loaded model."""

from dataclasses import dataclass
from pathlib import Path

import torch

from services.gpu_backend.models.config import ModelConfig, ModelError
from services.gpu_backend.models.gguf_loader import GgufNames, open_gguf
from services.gpu_backend.models.llama import Llama
from services.gpu_backend.models.model import Model
from services.gpu_backend.models.random_weights import RandomWeights, shape_of
from services.gpu_backend.models.safetensors_loader import SafetensorsSource
from services.gpu_backend.models.variants import VARIANTS
from services.gpu_backend.models.weights import FileSource, Progress, WeightSource, content_identity, no_progress

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass(frozen=True)
class LoadedModel:
    """A model, and the name of its weights that block keys carry."""

    model: Model
    identity: str


def load(
    folder: Path,
    dtype: str = "float32",
    device: str = "cpu",
    *,
    weights: str = "files",
    progress: Progress = no_progress,
) -> LoadedModel:
    """Loads a folder that holds one *.gguf, or config.json and *.safetensors.

    dtype is "float32" or "bfloat16"; weights are converted to it. weights is "files", or "random": then they
    are drawn, and of the folder only the model's shape is read. Raises ModelError, which names the file, and
    the tensor or key in it, or the bytes that the device lacks.
    """
    if dtype not in DTYPES:
        raise ModelError(f"dtype {dtype!r} is not one of {', '.join(DTYPES)}")
    target = torch.device(device)
    stored: FileSource | None = None
    if weights == "random":
        drawn = RandomWeights(shape_of(folder, _gguf_names()), DTYPES[dtype], target)
        source: WeightSource = drawn
        identity = drawn.identity
    else:
        stored, files = _open(folder)
        source = stored
        identity = content_identity(files, source.config, progress)
    config = source.config
    total, done = _parameters(config), 0

    def report(name: str, elements: int) -> None:
        nonlocal done
        done = min(done + elements, total)
        progress(name, done, total)

    model = Llama(source, DTYPES[dtype], target, report)
    if stored is not None and (unread := stored.unread()):
        raise ModelError(
            f"{folder}: holds tensors that models of architecture {config.architecture!r} don't have, so what it "
            f"computes is not known here: {', '.join(sorted(unread)[:4])} ({len(unread)} in all)"
        )
    progress("loaded", total, total)
    return LoadedModel(model, identity)


def _open(folder: Path) -> tuple[FileSource, list[Path]]:
    if not folder.is_dir():
        raise ModelError(f"{folder}: no such folder; a model is a folder with its files in it")
    ggufs = sorted(folder.glob("*.gguf"))
    if len(ggufs) > 1:
        names = ", ".join(file.name for file in ggufs)
        raise ModelError(f"{folder}: holds several GGUF files ({names}); keep one")
    if ggufs:
        return open_gguf(ggufs[0], _gguf_names()), ggufs
    if not (folder / "config.json").exists():
        raise ModelError(f"{folder}: holds neither a *.gguf nor a config.json with *.safetensors")
    source = SafetensorsSource(folder)
    if not source.files:
        raise ModelError(f"{folder}: has a config.json but no *.safetensors")
    return source, sorted(source.files)


def _gguf_names() -> dict[str, GgufNames]:
    return {name: each.gguf for name, each in VARIANTS.items()}


def _parameters(config: ModelConfig) -> int:
    """About how many weights there are: good enough for a progress bar."""
    attention = config.hidden * config.head_dim * (2 * config.heads + 2 * config.kv_heads)
    layer = attention + 3 * config.hidden * config.intermediate
    return config.vocab * config.hidden + config.layers * layer
