"""Prompts of tokens, and what a single engine without a store says to them: the right answers."""

from pathlib import Path

from services.cli.mesh.plan import MeshOptions
from tests.mesh.harness import Answer, Client, client, mesh
from tests.mesh.tiny_model import NAME

NEW_TOKENS = 6


def prompt(salt: int, length: int) -> list[int]:
    """The beginning of the salt's endless prompt, which shares nothing with another's."""
    return [3 + (salt if i == 0 else (i * i * 7 + 13 * i * salt) % 250) for i in range(length)]


async def ask(c: Client, tokens: list[int], new: int = NEW_TOKENS) -> Answer:
    return await c.complete(tokens, max_tokens=new, temperature=0, ignore_eos=True)


async def one_engine(folder: Path, prompts: dict[str, tuple[list[int], int]], model: str = NAME) -> dict[str, str]:
    """What a single engine without a store says to each of the prompts."""
    async with mesh(folder, MeshOptions(model=model, threads=1, kvstore=False)) as running, client(running) as c:
        return {name: (await ask(c, *asked)).text for name, asked in prompts.items()}
