"""The text side of every model that engines serve, loaded off the event loop when it is first seen."""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from hostless.v1 import scheduler_pb2 as pb
from services.common.paths import models_dir
from services.tokenizer import model_text
from services.tokenizer.detokenize import TokenText
from services.tokenizer.errors import unavailable
from services.tokenizer.model_text import ModelText

log = logging.getLogger(__name__)

RETRY_S = 5.0  # a folder that could not be read is not read again before so long


@dataclass(frozen=True, slots=True)
class Model:
    text: ModelText
    table: TokenText
    created: int
    """Unix seconds: when its files were written."""


class ModelShelf:
    """Models stay loaded; there are few of them and a request may ask for one again at any time."""

    def __init__(self, load: Callable[[Path], ModelText] = model_text.load) -> None:
        self._load = load
        self._loading: dict[str, asyncio.Task[Model]] = {}
        self._failed_at: dict[str, float] = {}
        self.reasons: dict[str, str] = {}
        """Why a model could not be loaded, by its id."""

    def loaded(self, model: str) -> Model | None:
        task = self._loading.get(model)
        return task.result() if task and task.done() and not task.exception() else None

    async def get(self, info: pb.EngineInfo) -> Model:
        """The model of an engine that serves it; waits while it is being loaded. Raises RequestError."""
        task = self._loading.get(info.model)
        if task is None or self._outgrown(task, info) or self._may_retry(task, info.model):
            task = self._loading[info.model] = asyncio.create_task(self._load_model(info))
        try:
            return await asyncio.shield(task)
        except Exception as error:
            raise unavailable(
                f"the tokenizer of {info.model!r} can't be loaded: {error}", "model_unreadable"
            ) from error

    async def close(self) -> None:
        for task in self._loading.values():
            task.cancel()
        if self._loading:
            await asyncio.wait(self._loading.values())

    async def _load_model(self, info: pb.EngineInfo) -> Model:
        folder = _folder(info)
        try:
            text = await asyncio.to_thread(self._load, folder)
            table = await asyncio.to_thread(text.token_text, info.vocab_size)
        except Exception as error:  # whatever is wrong with the files: told to those who ask, and tried again later
            self.reasons[info.model] = str(error)
            self._failed_at[info.model] = time.monotonic()
            log.error("can't load the model's tokenizer", exc_info=error, extra={"model": info.model})
            raise
        self.reasons.pop(info.model, None)
        log.info("model loaded", extra={"model": info.model, "folder": str(folder)})
        return Model(text, table, int(folder.stat().st_mtime))

    def _outgrown(self, task: asyncio.Task[Model], info: pb.EngineInfo) -> bool:
        """An engine emits ids that the table, made for another engine of the model, does not reach."""
        loaded = task.done() and not task.exception()
        return loaded and len(task.result().table.bytes) < info.vocab_size

    def _may_retry(self, task: asyncio.Task[Model], model: str) -> bool:
        failed = task.done() and task.exception() is not None
        return failed and time.monotonic() - self._failed_at.get(model, 0.0) > RETRY_S


def _folder(info: pb.EngineInfo) -> Path:
    """As the engine says where that exists here, else by the model's id."""
    told = Path(str(info.model_path))
    if info.model_path and told.exists():
        return told if told.is_dir() else told.parent
    return models_dir() / str(info.model)
