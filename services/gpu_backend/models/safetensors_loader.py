"""Weights from a HuggingFace folder: *.safetensors, sharded or not, beside a config.json."""

from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from services.gpu_backend.models.config import ModelError
from services.gpu_backend.models.huggingface_config import huggingface_config, read_json
from services.gpu_backend.models.weights import check_shape

_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_WHOLE, _INDEX = "model.safetensors", "model.safetensors.index.json"
_BUFFERS = "rotary_emb.inv_freq"  # older checkpoints keep what follows from the config


def weight_files(folder: Path) -> dict[str, Path]:
    """Tensor name -> file. Raises ModelError for an index that is none, and for a shard that it names and the folder
    lacks."""
    index = folder / _INDEX
    if index.exists():
        named = read_json(index).get("weight_map")
        if not isinstance(named, dict) or not all(isinstance(shard, str) for shard in named.values()):
            raise ModelError(f"{index}: 'weight_map' must be an object of file names by tensor")
        for shard in sorted(set(named.values())):
            if not (folder / shard).is_file():
                raise ModelError(f"{folder / shard}: missing; {_INDEX} names it: fetch the model again")
        return {name: folder / shard for name, shard in named.items()}
    found: dict[str, Path] = {}
    whole = folder / _WHOLE  # others beside it hold the same weights in another layout
    for file in [whole] if whole.exists() else sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(file, framework="pt") as weights:
                found.update(dict.fromkeys(weights.keys(), file))
        except (SafetensorError, OSError) as error:
            raise ModelError(f"{file}: not a whole safetensors file: {error}") from error
    return found


class SafetensorsSource:
    """A WeightSource over a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.config, self._tied = huggingface_config(folder / "config.json")
        self._files = weight_files(folder)
        self._unread = {name for name in self._files if not name.endswith(_BUFFERS)}

    @property
    def files(self) -> set[Path]:
        return set(self._files.values())

    def unread(self) -> set[str]:
        return self._unread

    def has(self, name: str) -> bool:
        return name in self._files or (name == "lm_head.weight" and not self._tied)

    def read(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        if name not in self._files:
            raise ModelError(f"{self.folder}: tensor {name!r} is in none of its safetensors files")
        file = self._files[name]
        self._unread.discard(name)
        try:
            with safe_open(file, framework="pt") as weights:
                check_shape(file, name, tuple(weights.get_slice(name).get_shape()), shape)
                tensor: torch.Tensor = weights.get_tensor(name)
        except (SafetensorError, OSError) as error:
            raise ModelError(f"{file}: tensor {name!r} can't be read: {error}") from error
        if tensor.dtype not in _DTYPES:
            raise ModelError(f"{file}: tensor {name!r} is {tensor.dtype}; float32, bfloat16 or float16 needed")
        return tensor
