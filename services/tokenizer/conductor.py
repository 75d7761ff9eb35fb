"""A request's way from Submit to its last delta: tokens, a place, and attempts until one brings it to its end."""

import asyncio
import logging
import time
from functools import partial

import numpy as np

from hostless.v1 import frontend_pb2 as pb
from hostless.v1 import scheduler_pb2
from services.common import logs
from services.common.keys import root_key
from services.tokenizer import prompt as prompts
from services.tokenizer.attempt import Attempts
from services.tokenizer.encoder import TokenIds
from services.tokenizer.encoding import EncodingPool
from services.tokenizer.engine_link import EngineFault, EngineLost
from services.tokenizer.errors import RequestError, failed
from services.tokenizer.kv_hits import KvHit, KvHits
from services.tokenizer.live_engines import LiveEngines, Tried
from services.tokenizer.metrics import Metrics
from services.tokenizer.model_shelf import Model, ModelShelf
from services.tokenizer.placed import Placed
from services.tokenizer.placement import Placer
from services.tokenizer.request import Request, State
from services.tokenizer.text_stream import TextStream
from services.tokenizer.traces import RequestTrace

log = logging.getLogger(__name__)


class Conductor:
    """serve() is one task a request. Tokens do not pass through it: the ring's poll hands them to the request."""

    def __init__(
        self,
        live: LiveEngines,
        shelf: ModelShelf,
        encoding: EncodingPool,
        kv: KvHits,
        placer: Placer,
        attempts: Attempts,
        metrics: Metrics,
        engine_wait_s: float,
    ) -> None:
        self._live = live
        self._shelf = shelf
        self._encoding = encoding
        self._kv = kv
        self._placer = placer
        self._attempts = attempts
        self._metrics = metrics
        self._engine_wait_s = engine_wait_s

    async def serve(self, request: Request) -> None:
        """Returns when the request has finished, one way or another. Cancel the task to cancel the request."""
        logs.request_id.set(request.submit.request_id)
        trace = RequestTrace(request.submit.traceparent, request.submit.request_id)
        try:
            model, prompt = await self._prepare(request, trace)
            if request.tokens_left:
                await self._generate(request, model, prompt, trace)
            else:
                request.finish(pb.FINISH_LENGTH)
        except RequestError as error:
            log.info("refused", extra={"status": error.http_status, "reason": error.message})
            request.fail(error)
        except Exception:
            log.exception("request failed")
            request.fail(failed("the tokenizer failed on this request", "internal_error"))
        finally:
            request.finish(pb.FINISH_CANCELLED)  # of no effect unless the task was cancelled
            self._metrics.ended(request)

    async def _prepare(self, request: Request, trace: RequestTrace) -> tuple[Model, TokenIds]:
        """From Submit to token ids, and the request's text stream."""
        submit = request.submit
        prompts.check(submit)
        model = await self._shelf.get(await self._served(submit.model))
        model.text.sampling.fill(submit.sampling)
        await self._served(submit.model)  # still, or again: reading a model takes its time
        limits = self._live.limits(submit.model)
        request.advance(State.ENCODING)
        began = time.perf_counter()
        with trace.span("tokenize"):
            work = partial(prompts.encode, submit, model.text, limits)
            prompt = await self._encoding.run(work, submit.ByteSize())
        self._metrics.encode_seconds.observe(time.perf_counter() - began)
        self._metrics.prompt_tokens.inc(len(prompt))
        stream = TextStream(model.table, submit.stop)
        most = prompts.max_tokens(submit.sampling, len(prompt), limits)
        request.begin(prompt, most, stream, model.text.opening(submit.chat))
        return model, prompt

    async def _generate(self, request: Request, model: Model, prompt: TokenIds, trace: RequestTrace) -> None:
        """On one engine after another until one brings it to its end.

        A request without tokens moves as long as there are engines. One with tokens moves once, as a new
        prompt of all its tokens so far; then its random draws begin anew, so a seeded sampling request
        that was moved does not repeat the text of one that was not.
        """
        tried: Tried = frozenset()
        moved, unlucky = False, 0
        while not request.finished:
            request.advance(State.SCHEDULING)
            whole = np.concatenate([prompt, np.array(request.generated, dtype=np.uint32)])
            if not request.tokens_left:
                request.finish(pb.FINISH_LENGTH)
                return
            placed = await self._place(request, whole, tried, trace)
            try:
                await self._attempts.make(request, placed, model, whole, trace)
            except EngineLost as lost:
                tried |= lost.blame
                unlucky += not lost.blame
                self._metrics.moved.inc()
                log.warning("moved", extra={"reason": str(lost), "tokens": len(request.generated)})
                if isinstance(lost, EngineFault) and not self._live.untried(request.submit.model, tried):
                    raise failed(str(lost)) from lost
                if moved or unlucky > 1:
                    raise failed(f"the engine was lost, and then the next one: {lost}", "engine_lost") from lost
                moved = bool(request.generated)
            finally:
                self._kv.release(placed.hit)

    async def _place(self, request: Request, prompt: TokenIds, tried: Tried, trace: RequestTrace) -> Placed:
        submit = request.submit
        info = await self._served(submit.model)
        with trace.span("schedule"):
            work = partial(self._kv.keys, prompt, info.kv_layout, submit.tenant)
            hit = await self._kv.lookup(*await self._encoding.run(work, prompt.nbytes))
            item = scheduler_pb2.ScheduleItem(
                request_id=submit.request_id,
                model=submit.model,
                prompt_tokens=len(prompt),
                cached_tokens=hit.cached_tokens,
                max_tokens=request.tokens_left,
                hit_marks=hit.marks,
            )
            try:
                where = await self._placer.place(item, tried)
            except BaseException:
                self._kv.release(hit)
                raise
        layout = where.engine.kv_layout
        if layout != info.kv_layout:
            self._kv.release(hit)
            hit = KvHit(root_key(layout, submit.tenant))
        return Placed(where, hit, time.time_ns())

    async def _served(self, model: str) -> scheduler_pb2.EngineInfo:
        """An engine of the model; waits for one within bounds. Raises RequestError."""
        deadline = asyncio.get_running_loop().time() + self._engine_wait_s
        while not (infos := self._live.serving(model)):
            error = self._live.unserved(model)
            if error.http_status == 404:
                raise error
            try:
                async with asyncio.timeout_at(deadline):
                    await self._live.changed.wait()
            except TimeoutError:
                raise error from None
        return infos[0]
