"""From settings to an engine kit. Runs in a thread; torch is imported here, if at all."""

import logging
import threading
import time
from pathlib import Path

from services.common.settings import SettingError
from services.gpu_backend.device.toolchain import ToolchainMissing
from services.gpu_backend.engine import EngineError
from services.gpu_backend.engines.synthetic import SyntheticEngine, SyntheticSettings
from services.gpu_backend.engines.synthetic_model import load_synthetic_model
from services.gpu_backend.kits import EngineKit, HostKit
from services.gpu_backend.settings import BackendSettings

log = logging.getLogger(__name__)

PROGRESS_EVERY_S = 1.0
SYNTHETIC_CONTEXT = 8192


class LoadingStopped(Exception):
    """The service was asked to stop before its engine was loaded."""


class LoadingProgress:
    """Logs how far loading is, at most once a second; raises LoadingStopped soon after `stop` is set."""

    def __init__(self, model: str, stop: threading.Event) -> None:
        self._model = model
        self._stop = stop
        self._said_at = time.monotonic()

    def __call__(self, what: str, done: int, total: int) -> None:
        if self._stop.is_set():
            raise LoadingStopped(f"loading {self._model} was stopped at {what}")
        if done == total or time.monotonic() - self._said_at >= PROGRESS_EVERY_S:
            self._said_at = time.monotonic()
            percent = 100 * done // total if total else 0
            log.info("loading", extra={"model": self._model, "what": what, "percent": percent})


def load_kit(settings: BackendSettings, progress: LoadingProgress) -> EngineKit:
    """The model's weights, loaded; no KV memory yet.

    Raises SettingError when the model is not there, can't be read or is too large, or this machine lacks what the
    engine needs; LoadingStopped.
    """
    return _KITS[settings.engine](settings, progress)


def _synthetic(settings: BackendSettings, progress: LoadingProgress) -> EngineKit:
    try:
        return HostKit(
            SyntheticEngine(
                SyntheticSettings(
                    words=tuple(int(word) for word in settings.synthetic_words),
                    vocab=settings.synthetic_vocab,
                    max_context=settings.max_context or SYNTHETIC_CONTEXT,
                    decode_rate=settings.synthetic_tokens_per_s,
                    prefill_rate=settings.synthetic_prefill_tokens_per_s,
                    model=load_synthetic_model(Path(settings.synthetic_model)) if settings.synthetic_model else None,
                    resident_layers=settings.kv_layers_resident,
                )
            )
        )
    except (ValueError, EngineError) as error:
        raise SettingError(f"synthetic engine: {error}") from None


def _torch(settings: BackendSettings, progress: LoadingProgress) -> EngineKit:
    _require_folder(settings)
    from services.gpu_backend.engines.torch_engine import TorchEngine, TorchSettings
    from services.gpu_backend.models.config import ModelError
    from services.gpu_backend.models.registry import load

    try:
        loaded = load(settings.model_folder, settings.number_type, weights=settings.weights, progress=progress)
    except ModelError as error:
        raise SettingError(f"model: {error}") from None
    own = TorchSettings(threads=settings.threads, resident_layers=settings.kv_layers_resident)
    try:
        engine = TorchEngine(loaded, own)
    except EngineError as error:
        raise SettingError(f"kv-layers-resident: {error}") from None
    return HostKit(engine)


def _cuda(settings: BackendSettings, progress: LoadingProgress) -> EngineKit:
    _require_folder(settings)
    try:
        from services.gpu_backend.engines.cuda.kit import load_graph_kit
    except (ImportError, ToolchainMissing) as error:
        raise SettingError(
            f"engine cuda: {error}. It needs torch for CUDA, triton and CUDA's Python bindings: "
            "pip install -c constraints.txt '.[all,cuda]'; docs/operations.md, On a GPU"
        ) from None
    return load_graph_kit(settings, progress)


def _require_folder(settings: BackendSettings) -> None:
    if not settings.model_folder.is_dir():
        raise SettingError(
            f"model {settings.model!r} is not at {settings.model_folder}; run `hostless pull {settings.model}`, "
            f"or name another one with --model"
        )


_KITS = {"torch": _torch, "cuda": _cuda, "synthetic": _synthetic}
