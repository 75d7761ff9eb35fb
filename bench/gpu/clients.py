"""Clients of an OpenAI server, in a process and on cores of their own: requests of an open loop, and what they saw.

    python -m bench.gpu.clients URL MODEL --rate 8 --count 64 --cores 14-15

Poisson arrivals; prompts of ids and answers have log-normal lengths, 16 tokens at least. The same options ask for the
same. One line of JSON: times in milliseconds, `mj_per_out_token` with the idle GPU's power in it.
"""

import argparse
import asyncio
import json
import math
import os
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from statistics import NormalDist

import uvloop

from bench.gpu.energy import Energy
from services.cli.load.client import Timeline
from services.cli.load.connection import ConnectionFailed, Connections, Target
from services.cli.load.summary import summarize

FEWEST = 16
"""Tokens of a prompt, and of an answer."""
FIRST_ID = 100
"""Below it vocabularies keep control tokens."""
SILENCE_S = 40.0


@dataclass(frozen=True)
class Lengths:
    """Log-normal, cut at both ends so that `mean` is still the mean."""

    mean: float
    sigma: float
    most: int

    def mu(self) -> float:
        """By bisection over 4,000 quantiles."""
        steps = [NormalDist().inv_cdf((i + 0.5) / 4000) for i in range(4000)]
        low, high = math.log(FEWEST), math.log(self.most) + 2
        for _ in range(50):
            middle = (low + high) / 2
            mean = sum(self.cut(math.exp(middle + self.sigma * step)) for step in steps) / len(steps)
            low, high = (middle, high) if mean < self.mean else (low, middle)
        return (low + high) / 2

    def cut(self, length: float) -> float:
        return min(max(length, FEWEST), self.most)


PROMPTS = Lengths(1019, 1.0, 4096)


@dataclass(frozen=True)
class Request:
    at_s: float
    prompt: list[int]
    answer: int


def requests(rate: float, count: int, answers: Lengths, vocab: int, seed: int = 0) -> Iterator[Request]:
    """`rate`: a second; 0: all at once."""
    draw, at_s = random.Random(seed), 0.0
    prompt_mu, answer_mu = PROMPTS.mu(), answers.mu()
    for _ in range(count):
        at_s += draw.expovariate(rate) if rate else 0.0
        prompt = int(PROMPTS.cut(draw.lognormvariate(prompt_mu, PROMPTS.sigma)))
        answer = int(answers.cut(draw.lognormvariate(answer_mu, answers.sigma)))
        ids = random.Random(draw.getrandbits(48))
        yield Request(at_s, [ids.randrange(FIRST_ID, vocab) for _ in range(prompt)], answer)


async def ask(connections: Connections, model: str, request: Request) -> Timeline:
    """A stamp for each token's event, also where a token has no text: random weights say many of those."""
    body = {"model": model, "prompt": request.prompt, "max_tokens": request.answer, "temperature": 0, "stream": True,
            "ignore_eos": True, "stream_options": {"include_usage": True}}  # fmt: skip
    data = json.dumps(body, separators=(",", ":")).encode()
    timeline, rest, others = Timeline(time.perf_counter()), b"", list[bytes]()

    def take(piece: bytes) -> None:
        nonlocal rest
        now = time.perf_counter()
        *events, rest = (rest + piece).split(b"\n\n")
        for event in events:
            if b'"choices":[{' in event or b'"choices": [{' in event:
                timeline.stamps.append(now)
            else:
                others.append(event)

    try:
        status = await connections.post(data, take)
    except ConnectionFailed as error:
        timeline.error = str(error)
        return timeline
    if status != 200 or len(others) != 2 or b"[DONE]" not in others[1] or b'"usage"' not in others[0]:
        timeline.error = f"{status}: {b' '.join([*others, rest])[:200].decode(errors='replace')}"
        return timeline
    usage = json.loads(others[0].removeprefix(b"data: "))["usage"]
    timeline.prompt_tokens, timeline.completion_tokens = usage["prompt_tokens"], usage["completion_tokens"]
    return timeline


async def run(target: Target, model: str, asked: Sequence[Request]) -> list[Timeline]:
    """In the order of their beginnings."""
    connections, begin = Connections(target), time.perf_counter()

    async def one(request: Request) -> Timeline:
        await asyncio.sleep(max(0.0, begin + request.at_s - time.perf_counter()))
        return await ask(connections, model, request)

    try:
        return list(await asyncio.gather(*map(one, asked)))
    finally:
        connections.close()


def saturated(timelines: Sequence[Timeline]) -> float:
    """Requests a second while all lanes are taken: those that end between the first and the last third."""
    ends = sorted(each.stamps[-1] for each in timelines if not each.error)
    first, last = len(ends) // 3, 2 * len(ends) // 3
    return round((last - first) / (ends[last] - ends[first]), 2) if last > first else 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("model")
    parser.add_argument("--rate", type=float, default=4.0, help="requests a second; 0: all at once")
    parser.add_argument("--count", type=int, default=64)
    parser.add_argument("--mean-out", type=float, default=463, help="tokens of an answer")
    parser.add_argument("--most-out", type=int, default=1024)
    parser.add_argument("--vocab", type=int, default=128_000, help="ids of prompts are below")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--gpu", type=int, default=0, help="whose energy is read")
    parser.add_argument("--cores", default="", help="as 14-15")
    given = parser.parse_args()
    if given.cores:
        first, last = map(int, given.cores.split("-"))
        os.sched_setaffinity(0, range(first, last + 1))
    answers = Lengths(given.mean_out, 0.8, given.most_out)
    asked = list(requests(given.rate, given.count, answers, given.vocab, given.seed))
    energy = Energy(given.gpu)
    before = energy.joules()
    timelines = uvloop.run(run(Target(given.url + "/v1/completions", silence_s=SILENCE_S), given.model, asked))
    after = energy.joules()
    found = asdict(summarize(timelines))
    tokens = found["completion_tokens"]
    used = None if before is None or after is None or not tokens else round(1e3 * (after - before) / tokens, 1)
    found["req_s"] = found.pop("requests_per_s")
    found |= {"rate": given.rate, "mj_per_out_token": used, "saturated_req_s": saturated(timelines)}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
