"""One attempt at a request, on the engine or engines where it was placed (steps 4 to 6 of docs/architecture.md)."""

import asyncio
from dataclasses import replace

from hostless.v1 import frontend_pb2 as pb
from services.common.keys import BLOCK_TOKENS
from services.fabric.ring import Finish, RecordFlags
from services.gpu_backend.client import new_transfer
from services.tokenizer import prompt as prompts
from services.tokenizer.arena import TooLarge
from services.tokenizer.encoder import TokenIds
from services.tokenizer.engine_link import EngineFault, EngineLost, Flight
from services.tokenizer.engine_pool import EnginePool
from services.tokenizer.errors import failed, invalid
from services.tokenizer.kv_hits import KvHit
from services.tokenizer.metrics import Metrics
from services.tokenizer.model_shelf import Model
from services.tokenizer.placed import Placed
from services.tokenizer.reader import Report
from services.tokenizer.request import Request, State
from services.tokenizer.submission import BadRequest, RingRequest
from services.tokenizer.traces import RequestTrace
from services.tokenizer.two_engines import OneStream, Side, fly

HANDS_OVER = RecordFlags.HAND_OVER | RecordFlags.NO_PERSIST
"""Of a record for a prefill engine: the decode engine stores the prompt's blocks (D4)."""

ATTACH_WAIT_S = 3.0  # an engine just placed on may be new in the table

_ENDS = {Finish.STOP: pb.FINISH_STOP, Finish.LENGTH: pb.FINISH_LENGTH}


class Attempts:
    """Tokens go from a ring's poll to the request, by no task of this."""

    def __init__(self, pool: EnginePool, metrics: Metrics, engine_wait_s: float) -> None:
        self._pool, self._metrics = pool, metrics
        self._wait_s = min(ATTACH_WAIT_S, engine_wait_s)

    async def make(self, request: Request, placed: Placed, model: Model, prompt: TokenIds, trace: RequestTrace) -> None:
        """Returns when the request has ended, or was abandoned. Raises EngineLost when another attempt may be made,
        and RequestError when none would help."""
        if placed.shared and request.tokens_left > 1:
            await self._on_two(request, placed, model, prompt, trace)
        else:
            await self._on_one(request, placed, model, prompt, trace)

    async def _on_one(
        self, request: Request, placed: Placed, model: Model, prompt: TokenIds, trace: RequestTrace
    ) -> None:
        link = await self._pool.link(placed.engine, self._wait_s)

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

    async def _on_two(
        self, request: Request, placed: Placed, model: Model, prompt: TokenIds, trace: RequestTrace
    ) -> None:
        """A prefill and a decode engine (D1-D3)."""
        links = [await self._pool.link(info, self._wait_s) for info in (placed.engine, placed.decode)]
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

    def _end(self, request: Request, finish: Finish, placed: Placed) -> None:
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
