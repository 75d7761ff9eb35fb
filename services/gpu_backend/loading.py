"""From settings to an engine with its KV memory. Runs in a thread; torch is imported here, if at all."""

import logging
import threading
import time

from services.common.settings import SettingError
from services.gpu_backend.engine import PAGE_TOKENS, Engine, EngineError, ModelGeometry
from services.gpu_backend.engines.host_memory import available_bytes
from services.gpu_backend.engines.synthetic import SyntheticEngine, SyntheticSettings
from services.gpu_backend.settings import BackendSettings

log = logging.getLogger(__name__)

DEFAULT_KV_BYTES = 1 << 30
PROGRESS_EVERY_S = 1.0
SYNTHETIC_CONTEXT = 8192


class LoadingStopped(Exception):
    """The service was asked to stop before its engine was loaded."""


def load_engine(settings: BackendSettings, stop: threading.Event) -> Engine:
    """The engine, its KV pages allocated.

    Raises SettingError when the model is not there or can't be read, or memory doesn't suffice, and
    LoadingStopped soon after `stop` is set.
    """
    engine = _ENGINES[settings.engine](settings, stop)
    geometry = engine.geometry
    try:
        pages = settings.kv_pages or default_pages(geometry, lane_pages(settings, geometry) * settings.batch)
        engine.allocate(pages, settings.batch, settings.step_tokens)
    except EngineError as error:
        raise SettingError(f"kv-pages: {error}") from None
    log.info(
        "KV memory",
        extra={
            "pages": pages,
            "tokens": pages * PAGE_TOKENS,
            "page_bytes": geometry.block_bytes,
            "total_mib": round(pages * geometry.block_bytes / 2**20, 1),
        },
    )
    return engine


def context_of(settings: BackendSettings, geometry: ModelGeometry) -> int:
    """Most tokens of one request, as the model and the settings have it."""
    if settings.max_context > geometry.max_context:
        raise SettingError(f"max-context: {settings.max_context} is more than the model's {geometry.max_context}")
    return settings.max_context or geometry.max_context


def lane_pages(settings: BackendSettings, geometry: ModelGeometry) -> int:
    """Pages of the longest request."""
    return -(-context_of(settings, geometry) // PAGE_TOKENS)


def default_pages(geometry: ModelGeometry, useful: int) -> int:
    """As many as are of use, within 1 GiB and half of the memory that is free. Raises EngineError for none."""
    free = available_bytes()
    pages = min(useful, min(DEFAULT_KV_BYTES, free // 2) // geometry.block_bytes)
    if pages < 1:
        raise EngineError(f"a page has {geometry.block_bytes} bytes; {free} bytes are free, of which half may be used")
    return pages


def _synthetic(settings: BackendSettings, stop: threading.Event) -> Engine:
    try:
        return SyntheticEngine(
            SyntheticSettings(
                words=tuple(int(word) for word in settings.synthetic_words),
                vocab=settings.synthetic_vocab,
                max_context=settings.max_context or SYNTHETIC_CONTEXT,
                decode_rate=settings.synthetic_tokens_per_s,
                prefill_rate=settings.synthetic_prefill_tokens_per_s,
            )
        )
    except ValueError as error:
        raise SettingError(f"synthetic engine: {error}") from None


def _torch(settings: BackendSettings, stop: threading.Event) -> Engine:
    if not settings.model_folder.is_dir():
        raise SettingError(
            f"model {settings.model!r} is not at {settings.model_folder}; run `hostless pull {settings.model}`, "
            f"or name another one with --model"
        )
    from services.gpu_backend.engines.torch_engine import TorchEngine, TorchSettings
    from services.gpu_backend.models.config import ModelError
    from services.gpu_backend.models.registry import load

    try:
        loaded = load(settings.model_folder, settings.dtype, progress=_Progress(settings.model, stop))
    except ModelError as error:
        raise SettingError(f"model: {error}") from None
    return TorchEngine(loaded, TorchSettings(threads=settings.threads))


_ENGINES = {"torch": _torch, "synthetic": _synthetic}


class _Progress:
    """Logs how far loading is, at most once a second."""

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
