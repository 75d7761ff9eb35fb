"""A request's way from Submit to its last delta (steps 2 to 6 of docs/architecture.md)."""

import asyncio
import logging
import time
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from hostless.v1 import frontend_pb2 as pb
from hostless.v1 import scheduler_pb2
from services.common import logs
from services.common.keys import BLOCK_TOKENS, root_key
from services.fabric.ring import Finish, RecordFlags
from services.gpu_backend.client import new_transfer
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
from services.tokenizer.reader import Report
from services.tokenizer.request import Request, State
from services.tokenizer.submission import BadRequest, RingRequest
from services.tokenizer.text_stream import TextStream
from services.tokenizer.traces import RequestTrace
from services.tokenizer.two_engines import OneStream, Side, fly

log = logging.getLogger(__name__)

HANDS_OVER = RecordFlags.HAND_OVER | RecordFlags.NO_PERSIST
"""Of a record for a prefill engine: the decode engine stores the prompt's blocks (D4)."""

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
        moved, unlucky = False, 0
        while not request.finished:
            request.advance(State.SCHEDULING)
            whole = np.concatenate([prompt, np.array(request.generated, dtype=np.uint32)])
            if not request.tokens_left:
                request.finish(pb.FINISH_LENGTH)
                return
            placed = await self._place(request, whole, tried, trace)
            try:
                if placed.shared and request.tokens_left > 1:
                    await self._fly_shared(request, placed, model, whole, trace)
                else:
                    await self._fly(request, placed, model, whole, trace)
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
        return _Placed(where, hit, time.time_ns())

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

    async def _fly_shared(
        self, request: Request, placed: "_Placed", model: Model, prompt: TokenIds, trace: RequestTrace
    ) -> None:
        """One attempt on a prefill and a decode engine (D1-D3). Raises EngineLost when another may be made."""
        wait_s = min(ATTACH_WAIT_S, self._engine_wait_s)
        links = [await self._pool.link(info, wait_s) for info in (placed.engine, placed.decode)]
        published: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def take(ids: list[int], stop_last: bool) -> None:
            if not request.generated:
                trace.seen()
            self._metrics.generated += len(ids)
            if request.receive(ids, stop_last):
                for side in sides:
                    side.abandon()

        def reported(report: Report) -> None:
            request.cached_tokens = report.cached_tokens
            trace.reported(report)

        stream = OneStream(take)
        first = Flight(stream.of_engine(), lambda: trace.published(placed.at_ns), reported)
        rest = Flight(stream.of_engine(), lambda: published.set_result(None), lambda report: None)
        transfer = new_transfer(placed.decode.engine_id, placed.decode.epoch)
        whole = _ring_request(request, placed.hit, model, prompt, first)
        here, there = placed.reads
        sides = [
            Side(links[0], replace(whole, max_tokens=1, flags=whole.flags | HANDS_OVER, transfer=transfer,
                                   kv_reads=here)),
            Side(links[1], replace(whole, tag=rest, receives=True, transfer=transfer, kv_reads=there)),
        ]  # fmt: skip
        request.advance(State.SUBMITTED)
        request.cached_tokens = placed.hit.cached_tokens
        try:
            ended = await fly(sides[0], sides[1], published, stream)
        except (BadRequest, TooLarge) as error:
            raise invalid(f"engines {placed.name} can't take the request: {error}") from error
        if ended is not None:
            self._end(request, ended[0], placed)

    def _end(self, request: Request, finish: Finish, placed: "_Placed") -> None:
        if reason := _ENDS.get(finish):
            request.finish(reason)
            return
        name, blame = placed.name, placed.blame
        if finish is Finish.TOO_LARGE:
            raise invalid(
                f"engine {name} has not enough KV memory for the prompt and max_tokens; ask for less",
                "max_tokens",
                "context_length_exceeded",
            )
        if finish is Finish.ENGINE_ERROR:
            raise EngineFault(f"engine {name} failed while it computed the request", blame)
        if finish in (Finish.CANCELLED, Finish.DRAINING):  # nobody here cancelled it: the engine let go of us
            raise EngineLost(f"engine {name} ended the request: {finish.name.lower()}", blame)
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
    where: scheduler_pb2.Placement
    hit: KvHit
    at_ns: int

    @property
    def engine(self) -> scheduler_pb2.EngineInfo:
        """That serves, or prefills."""
        return self.where.engine

    @property
    def shared(self) -> bool:
        """Whether another engine goes on after the first token."""
        return bool(self.where.HasField("decode"))

    @property
    def decode(self) -> scheduler_pb2.EngineInfo:
        return self.where.decode

    @property
    def reads(self) -> tuple[range, range]:
        """Blocks of the hit that the engine that prefills, and the one that decodes, read from the store (D1, D2, D15),
        or hold.
        The hit may have become shorter since it was placed."""
        blocks = self.hit.cached_tokens // BLOCK_TOKENS
        match self.where.path:
            case scheduler_pb2.READ_PATH_DECODE:
                here = 0
            case scheduler_pb2.READ_PATH_SPLIT:
                here = min((self.where.reused_tokens + self.where.prefill_read_tokens) // BLOCK_TOKENS, blocks)
            case _:
                here = blocks
        return range(here), range(here, blocks)

    @property
    def engines(self) -> list[scheduler_pb2.EngineInfo]:
        return [self.engine, self.decode] if self.shared else [self.engine]

    @property
    def name(self) -> str:
        return " and ".join(info.engine_id for info in self.engines)

    @property
    def blame(self) -> Tried:
        return frozenset((info.engine_id, info.epoch) for info in self.engines)


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
        kv_reads=range(hit.cached_tokens // BLOCK_TOKENS),
        kv_root=hit.root,
        tag=flight,
    )
