"""Prefill and decode apart (D1-D4): the tokens of one engine, bytes as the paper has them, and nothing left behind."""

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from services.cli.mesh.plan import MeshOptions
from tests.mesh.baseline import at_baseline, moved, stats, value
from tests.mesh.harness import PATIENT, SHORT_LEASES, SPLIT, Answer, Client, client, mesh
from tests.mesh.one_engine import NEW_TOKENS, ask, one_engine, prompt
from tests.mesh.tiny_model import NAME, make_tiny_model

pytestmark = pytest.mark.slow  # meshes of six processes, two of which load torch

CONVERSATIONS, TURNS = 9, 3
LENGTHS = (1, 63, 64, 65, 127, 128, 129, 192, 193, 257)
Kinds = list[tuple[int, int]]
"""Lengths of prompts, in tokens, and their hits, in blocks."""
AGENTS: Kinds = [(77 * 64, 0), (77 * 64, 38), (77 * 64, 76), (76 * 64 + 1, 76)]
"""0, 49.4 and 98.7 % of the prompt's blocks, and all of its whole ones."""


@asynccontextmanager
async def apart(folder: Path, model: str = NAME, **environ: str) -> AsyncIterator[Client]:
    """1P1D; the two sides read in turn, and every third hit both."""
    options = MeshOptions(model=model, prefill=1, decode=1, threads=1, policy="dualpath_round_robin")
    # An engine may take that long to start, or to be heard of, where there is little CPU.
    environ = {"HOSTLESS_TOKENIZER_ENGINE_WAIT_S": "60", **SPLIT, **environ}
    async with mesh(folder, options, **environ) as running, client(running) as c:
        yield c


@pytest.fixture
def block_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> int:
    """Of a model of the architecture that the test is given, Llama's if none."""
    monkeypatch.setenv("HOSTLESS_MODELS", str(tmp_path / "models"))
    for name in ("one", "apart"):
        (tmp_path / name).mkdir()
    return make_tiny_model(tmp_path / "models", 8192, getattr(request, "param", "llama"))


def closed_form(before: dict[str, int], after: dict[str, int], pages: int, hit: int, block_bytes: int) -> str:
    """Checks the bytes of one request in blocks; answers the side that read its hit."""
    blocks = {link: (after[link] - before[link]) / block_bytes for link in after}
    here, there = blocks["store_to_prefill_buffer"], blocks["store_to_decode_buffer"]
    assert here + there == hit
    expected = {
        "prefill_buffer_to_prefill_pages": here,
        "decode_buffer_to_prefill_pages": there,
        "prefill_pages_to_decode_buffer": pages - there,
        "decode_buffer_to_decode_pages": pages,
    }
    assert {link: blocks[link] for link in expected} == expected
    return "split" if here and there else "decode" if there else "prefill"


def each_hit(*lengths: int) -> Kinds:
    """That prompts of these lengths can have."""
    return [(length, hit) for length in lengths for hit in range((length - 1) // 64 + 1)]


async def same_tokens_and_traffic(folder: Path, kinds: Kinds, block_bytes: int, model: str = NAME) -> None:
    """Each read by each side: the tokens of one engine, and the bytes of the closed form over each link."""
    cases = [(length, hit, path) for length, hit in kinds for path in range(3 if hit else 1)]
    prompts = {f"{case}": (prompt(salt, case[0]), NEW_TOKENS) for salt, case in enumerate(cases)}
    reference = await one_engine(folder / "one", prompts, model)
    sides: set[str] = set()
    async with apart(folder / "apart", model, **PATIENT) as c:
        for case in cases:
            (length, hit, _), (tokens, _) = case, prompts[f"{case}"]
            if hit:
                before = (await stats(c)).blocks
                await ask(c, tokens[: 64 * hit + 1], 1)

                async def stored(most: int = before + hit) -> bool:
                    return (await stats(c)).blocks >= most

                await c.until(f"{hit} blocks are stored", stored)
            before_bytes = await moved(c)
            answer = await ask(c, tokens)
            assert (answer.finish, answer.error) == ("length", None), case
            assert answer.text == reference[f"{case}"], case
            assert answer.usage
            assert answer.usage["prompt_tokens_details"]["cached_tokens"] == 64 * hit, case
            side = closed_form(before_bytes, await moved(c), -(-length // 64), hit, block_bytes)
            sides |= {side} if hit else set()
            await c.until_idle()
        assert sides == {"prefill", "decode", "split"}
        await at_baseline(c)


async def test_every_hit_length(tmp_path: Path, block_bytes: int) -> None:
    await same_tokens_and_traffic(tmp_path, each_hit(*LENGTHS), block_bytes)


async def test_hits_as_long_as_agents_have_them(tmp_path: Path, block_bytes: int) -> None:
    await same_tokens_and_traffic(tmp_path, AGENTS, block_bytes)


@pytest.mark.parametrize("block_bytes", ["qwen3"], indirect=True)
async def test_heads_wider_than_the_hidden_size_has_room_for(tmp_path: Path, block_bytes: int) -> None:
    await same_tokens_and_traffic(tmp_path, each_hit(65, 193), block_bytes)


@pytest.mark.model
async def test_the_real_model(tmp_path: Path) -> None:
    """SmolLM2-135M: 30 layers of 3 KV heads of 64, in float32."""
    for name in ("one", "apart"):
        (tmp_path / name).mkdir()
    await same_tokens_and_traffic(tmp_path, each_hit(63, 128, 129), 30 * 2 * 64 * 3 * 64 * 4, "SmolLM2-135M-Instruct")


async def converse(c: Client, conversation: int, leaves: bool) -> list[str]:
    """Turns of one agent, each with all before it; one that `leaves` gives up the last turn in its middle."""
    tokens, said = prompt(conversation, 50 + 13 * conversation), []
    for turn in range(TURNS):
        ask_it = asyncio.ensure_future(ask(c, tokens, NEW_TOKENS + 40))
        if leaves and turn == TURNS - 1:
            await asyncio.wait((ask_it,), timeout=0.02 * conversation)
            ask_it.cancel()
            break
        answer = await ask_it
        assert (answer.finish, answer.error) == ("length", None)
        said.append(answer.text)
        tokens = tokens + [5 + (conversation * 11 + turn * 17 + i * 3) % 240 for i in range(70)]
    return said


async def agents(c: Client) -> list[list[str]]:
    return list(await asyncio.gather(*(converse(c, i, i % 3 == 2) for i in range(CONVERSATIONS))))


@pytest.mark.parametrize("transport", ["shm", "tcp"])
async def test_conversations_side_by_side(tmp_path: Path, block_bytes: int, transport: str) -> None:
    """2P2D under load, some clients leaving: each conversation is told what one engine would have said."""
    options = MeshOptions(model=NAME, threads=1, kvstore=False)
    async with mesh(tmp_path / "one", options) as running, client(running) as c:
        reference = await agents(c)
    options = MeshOptions(model=NAME, prefill=2, decode=2, threads=1, policy="dualpath_round_robin")
    environ = {"HOSTLESS_GPU_BACKEND_TRANSPORT": transport, **PATIENT, **SPLIT}
    async with mesh(tmp_path / "apart", options, **environ) as running, client(running) as c:
        assert await agents(c) == reference
        await at_baseline(c)
        handed_over = [await value(c, name, "kv_prompts_sent") for name in ("prefill-0", "prefill-1")]
        assert all(handed_over)


class Started:
    """A stream under way; `flowing` is set once more text has come than the prefill engine's."""

    def __init__(self, c: Client, tokens: list[int], new: int) -> None:
        self.flowing = asyncio.Event()
        self._text = ""
        ask = c.complete(tokens, max_tokens=new, temperature=0, ignore_eos=True, on_text=self._take)
        self.task: asyncio.Task[Answer] = asyncio.ensure_future(ask)

    def _take(self, text: str) -> None:
        self._text += text
        if len(self._text) > 40:
            self.flowing.set()

    async def end(self) -> Answer:
        async with asyncio.timeout(90):
            return await self.task


async def soon(event: asyncio.Event) -> None:
    async with asyncio.timeout(60):
        await event.wait()


class Hurt:
    """1P1D, a long request with its right answer, and what must hold whatever happens to it."""

    def __init__(self, c: Client, tokens: list[int], new: int, right: str) -> None:
        self.c, self.m = c, c.mesh
        self._tokens, self._new, self._right = tokens, new, right

    def start(self) -> Started:
        return Started(self.c, self._tokens, self._new)

    async def expecting(self) -> bool:
        return bool(await value(self.c, "decode-0", "expecting"))

    async def handing_over(self) -> bool:
        return bool(await value(self.c, "prefill-0", "loading"))

    async def works(self) -> bool:
        return (await ask(self.c, [9], 2)).finish == "length"

    async def survived(self, started: Started, or_error: bool = False) -> None:
        """The right tokens, or where so said an error event; and everything is free again."""
        answer = await started.end()
        if not (or_error and answer.error):
            assert (answer.finish, answer.error) == ("length", None)
            assert answer.text == self._right
        await at_baseline(self.c)
        await self.c.until("it works", self.works, 60)

    async def again(self, engine: str) -> None:
        await self.m.kill(engine)
        await self.m.restart(engine)


@pytest.fixture
async def hurt(tmp_path: Path, block_bytes: int) -> AsyncIterator[Hurt]:
    tokens, new = prompt(5, 200), 300
    right = (await one_engine(tmp_path / "one", {"it": (tokens, new)}))["it"]
    async with apart(tmp_path / "apart", **SHORT_LEASES) as c:
        yield Hurt(c, tokens, new, right)


async def test_whoever_dies_the_request_ends_and_nothing_is_held(hurt: Hurt) -> None:
    """One mesh for all steps, because it takes long to start."""
    m = hurt.m
    await hurt.survived(hurt.start())  # nobody

    m.signal("prefill-0", signal.SIGSTOP)  # the prefill engine, before the first token
    started = hurt.start()
    await hurt.c.until("the decode engine waits", hurt.expecting)
    await hurt.again("prefill-0")
    await hurt.survived(started)

    m.signal("decode-0", signal.SIGSTOP)  # the prefill engine, between the first token and the end of the hand-over
    started = hurt.start()
    await hurt.c.until("the prefill engine hands over", hurt.handing_over)
    await m.kill("prefill-0")
    m.signal("decode-0", signal.SIGCONT)
    await m.restart("prefill-0")
    await hurt.survived(started, or_error=True)  # the decode engine's lease may have run out meanwhile

    started = hurt.start()  # the decode engine, while it decodes
    await soon(started.flowing)
    await hurt.again("decode-0")
    await hurt.survived(started)

    started = hurt.start()  # the client, while the decode engine decodes
    await soon(started.flowing)
    started.task.cancel()
    await at_baseline(hurt.c)
