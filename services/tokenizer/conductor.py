"""A request's way from Submit to its last delta (steps 2 to 6 of docs/architecture.md)."""

import asyncio
import logging
import time
from dataclasses import dataclass
from functools import partial

import numpy as np

from hostless.v1 import frontend_pb2 as pb
from hostless.v1 import scheduler_pb2
from services.common import logs
from services.common.keys import root_key
from services.fabric.ring import Finish, RecordFlags
from services.tokenizer import prompt as prompts
from services.tokenizer.arena import TooLarge
from services.tokenizer.encoder import TokenIds
from services.tokenizer.encoding import EncodingPool
from services.tokenizer.engine_link import EngineFault, EngineLost, Flight
from services.tokenizer.engine_pool import EnginePool
from services.tokenizer.errors import RequestError, failed, invalid
from services.tokenizer.kv_hits import KvHit, KvHits
from services.tokenizer.live_engines import LiveEngines, Tried
from services.tokenizer.metrics import Metrics
from services.tokenizer.model_shelf import Model, ModelShelf
from services.tokenizer.placement import Placer
from services.tokenizer.request import Request, State
from services.tokenizer.submission import BadRequest, RingRequest
from services.tokenizer.text_stream import TextStream
from services.tokenizer.traces import RequestTrace

log = logging.getLogger(__name__)

ATTACH_WAIT_S = 3.0  # an engine just placed on may be new in the table

_ENDS = {Finish.STOP: pb.FINISH_STOP, Finish.LENGTH: pb.FINISH_LENGTH}


class Conductor:
    """serve() is one task a request. Tokens do not pass through it: the ring's poll hands them to the request."""

    def __init__(
        self,
        live: LiveEngines,
        shelf: ModelShelf,
        encoding: EncodingPool,
        kv: KvHits,
        placer: Placer,
        pool: EnginePool,
        metrics: Metrics,
        engine_wait_s: float,
    ) -> None:
        self._live = live
        self._shelf = shelf
        self._encoding = encoding
        self._kv = kv
        self._placer = placer
        self._pool = pool
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
        limits = self._live.limits(submit.model)
        request.advance(State.ENCODING)
        began = time.perf_counter()
        with trace.span("tokenize"):
            work = partial(prompts.encode, submit, model.text, limits)
            prompt = await self._encoding.run(work, submit.ByteSize())
        self._metrics.encode_seconds.observe(time.perf_counter() - began)
        self._metrics.prompt_tokens.inc(len(prompt))
        stream = TextStream(model.table, submit.stop)
        request.begin(prompt, prompts.max_tokens(submit.sampling, len(prompt), limits), stream)
        return model, prompt

    async def _generate(self, request: Request, model: Model, prompt: TokenIds, trace: RequestTrace) -> None:
        """On one engine after another until one brings it to its end.

        A request without tokens moves as long as there are engines. One with tokens moves once, as a new
        prompt of all its tokens so far; then its random draws begin anew, so a seeded sampling request
        that was moved does not repeat the text of one that was not.
        """
        tried: Tried = frozenset()
        moved = False
        while not request.finished:
            request.advance(State.SCHEDULING)
            whole = np.concatenate([prompt, np.array(request.generated, dtype=np.uint32)])
            if not request.tokens_left:
                request.finish(pb.FINISH_LENGTH)
                return
            placed = await self._place(request, whole, tried, trace)
            tried |= {placed.key}
            try:
                await self._fly(request, placed, model, whole, trace)
            except EngineLost as lost:
                self._metrics.moved.inc()
                log.warning("moved", extra={"reason": str(lost), "tokens": len(request.generated)})
                if isinstance(lost, EngineFault) and not self._live.untried(request.submit.model, tried):
                    raise failed(str(lost)) from lost
                if moved:
                    raise failed(f"the engine was lost, and then the next one: {lost}", "engine_lost") from lost
                moved = bool(request.generated)
            finally:
                self._kv.release(placed.hit)

    async def _place(self, request: Request, prompt: TokenIds, tried: Tried, trace: RequestTrace) -> "_Placed":
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
            )
            try:
                engine = await self._placer.place(item, tried)
            except BaseException:
                self._kv.release(hit)
                raise
        return _Placed(
            engine,
            hit if engine.kv_layout == info.kv_layout else KvHit(root_key(engine.kv_layout, submit.tenant)),
            time.time_ns(),
        )

    async def _fly(
        self, request: Request, placed: "_Placed", model: Model, prompt: TokenIds, trace: RequestTrace
    ) -> None:
        """One attempt on one engine. Raises EngineLost when another may be tried."""
        link = await self._pool.link(placed.engine, min(ATTACH_WAIT_S, self._engine_wait_s))

        def take(ids: list[int], stop_last: bool) -> None:
            if not request.generated:
                trace.seen()
            self._metrics.generated += len(ids)
            if request.receive(ids, stop_last):  # a stop string: the engine is told now, this task hears it next
                link.abandon(flight)

        flight = Flight(take, lambda: trace.published(placed.at_ns), trace.reported)
        request.advance(State.SUBMITTED)
        request.cached_tokens = placed.hit.cached_tokens
        try:
            link.start(_ring_request(request, placed.hit, model, prompt, flight))
        except (BadRequest, TooLarge) as error:
            raise invalid(f"engine {placed.engine.engine_id} can't take the request: {error}") from error
        try:
            ended = await flight.ended
        finally:
            link.abandon(flight)
        if ended is None:
            return
        finish, report = ended
        request.cached_tokens = report.cached_tokens
        self._end(request, finish, placed)

    def _end(self, request: Request, finish: Finish, placed: "_Placed") -> None:
        if reason := _ENDS.get(finish):
            request.finish(reason)
            return
        name = placed.engine.engine_id
        if finish is Finish.TOO_LARGE:
            raise invalid(
                f"engine {name} has not enough KV memory for the prompt and max_tokens; ask for less",
                "max_tokens",
                "context_length_exceeded",
            )
        if finish is Finish.ENGINE_ERROR:
            raise EngineFault(f"engine {name} failed while it computed the request")
        if finish in (Finish.CANCELLED, Finish.DRAINING):  # nobody here cancelled it: the engine let go of us
            raise EngineLost(f"engine {name} ended the request: {finish.name.lower()}")
        raise failed(f"engine {name} refused the request: {finish.name.lower()}")

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


@dataclass(frozen=True, slots=True)
class _Placed:
    engine: scheduler_pb2.EngineInfo
    hit: KvHit
    at_ns: int

    @property
    def key(self) -> tuple[str, int]:
        return self.engine.engine_id, self.engine.epoch


def _ring_request(request: Request, hit: KvHit, model: Model, prompt: TokenIds, flight: Flight) -> RingRequest:
    sampling = request.submit.sampling
    return RingRequest(
        prompt=prompt,
        max_tokens=request.tokens_left,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        seed=request.seed,
        stop_ids=prompts.stop_ids(sampling, model.text.encoder.vocabulary.eos_ids),
        flags=RecordFlags.IGNORE_EOS if sampling.ignore_eos else RecordFlags(0),
        cached_tokens=hit.cached_tokens,
        kv_lease=hit.lease_id,
        kv_root=hit.root,
        tag=flight,
    )
