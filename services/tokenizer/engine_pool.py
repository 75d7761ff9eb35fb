"""Attachments to all live engines: made when an engine appears in the table, given up when it is gone."""

import asyncio
import logging
import time
from collections.abc import Callable

from hostless.v1 import scheduler_pb2 as pb
from services.common.backoff import Backoff
from services.fabric.errors import FabricError
from services.gpu_backend.client import EngineCallError, EngineClient
from services.tokenizer.attachment import Attachment, AttachmentSettings
from services.tokenizer.engine_link import EngineLink, EngineLost
from services.tokenizer.live_engines import LiveEngines
from services.tokenizer.reader import Progress

log = logging.getLogger(__name__)

RETIRE_POLL_S = 0.5

Key = tuple[str, int]
"""(engine_id, epoch)."""


class EnginePool:
    """run() owns a task an engine. An engine that left the table keeps its attachment while it works for us:
    the table may be empty only because the scheduler restarted; the engine's own lease says if it lives."""

    def __init__(self, live: LiveEngines, front_end_id: str, settings: AttachmentSettings) -> None:
        self._live = live
        self._front_end_id = front_end_id
        self._settings = settings
        self.links: dict[Key, EngineLink] = {}
        """All engines attached now."""
        self.attached = asyncio.Event()
        """Set, and replaced, whenever an engine was attached."""
        self.polls = 0

    async def link(self, info: pb.EngineInfo, timeout_s: float) -> EngineLink:
        """The attached engine. Raises EngineLost if it can't be attached in time."""
        key = info.engine_id, info.epoch
        try:
            async with asyncio.timeout(timeout_s):
                while (link := self.links.get(key)) is None or not link.usable:
                    await self.attached.wait()
        except TimeoutError:
            message = f"engine {info.engine_id} could not be attached within {timeout_s:g} s"
            raise EngineLost(message, frozenset({key})) from None
        return link

    def usable(self, info: pb.EngineInfo) -> bool:
        link = self.links.get((info.engine_id, info.epoch))
        return link is not None and link.usable

    async def run(self) -> None:
        """Follows the table, for ever."""
        holders: dict[Key, asyncio.Task[None]] = {}
        async with asyncio.TaskGroup() as tasks:
            while True:
                changed = self._live.changed
                for key in [key for key, task in holders.items() if task.done()]:
                    del holders[key]
                for info in self._live.engines.values():
                    key = info.engine_id, info.epoch
                    if key not in holders:
                        holders[key] = tasks.create_task(self._hold(info))
                await changed.wait()

    async def _hold(self, info: pb.EngineInfo) -> None:
        """Attaches, and attaches anew when the attachment is lost, while the engine is in the table."""
        client, backoff = EngineClient(info.address), Backoff()
        try:
            while self._wanted(info):
                link = EngineLink(info)
                try:
                    attachment = await Attachment.open(
                        client, self._front_end_id, self._counting(link.deliver), self._settings, time.monotonic
                    )
                except (EngineCallError, FabricError) as error:
                    log.warning("can't attach", extra={"engine": info.engine_id, "reason": str(error)})
                    await backoff.pause()
                    continue
                backoff.reset()
                await self._use(info, link, attachment)
        finally:
            await client.close()

    async def _use(self, info: pb.EngineInfo, link: EngineLink, attachment: Attachment) -> None:
        """Until the engine is lost, or left the table and has nothing of ours."""
        key = info.engine_id, info.epoch
        link.attach(attachment)
        self.links[key] = link
        self.attached.set()
        self.attached = asyncio.Event()
        log.info("attached", extra={"engine": info.engine_id, "model": info.model})
        running = asyncio.create_task(attachment.run())
        try:
            await self._until_retired(info, link, running)
        finally:
            del self.links[key]
            running.cancel()
            await asyncio.wait([running])
            reason = attachment.lost or "it left the table"
            log.info("detached", extra={"engine": info.engine_id, "reason": reason})
            link.lose(reason)
            await attachment.close()

    async def _until_retired(self, info: pb.EngineInfo, link: EngineLink, running: asyncio.Task[object]) -> None:
        while not running.done():
            changed = asyncio.create_task(self._live.changed.wait())
            idle_check = None if self._wanted(info) else RETIRE_POLL_S
            await asyncio.wait([running, changed], timeout=idle_check, return_when=asyncio.FIRST_COMPLETED)
            changed.cancel()
            if not self._wanted(info) and (self._replaced(info) or not (link.flights or link.waiting)):
                return
        running.result()  # a bug in the poll loop must be seen

    def _wanted(self, info: pb.EngineInfo) -> bool:
        now = self._live.engines.get(info.engine_id)
        return now is not None and now.epoch == info.epoch

    def _replaced(self, info: pb.EngineInfo) -> bool:
        """Another engine of that name lives: this one is dead, whatever its lease says."""
        return info.engine_id in self._live.engines and not self._wanted(info)

    def _counting(self, deliver: Callable[[list[Progress]], None]) -> Callable[[list[Progress]], None]:
        def counted(news: list[Progress]) -> None:
            self.polls += 1
            deliver(news)

        return counted
