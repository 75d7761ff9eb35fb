"""The memory that a decode engine takes prompts over by: what does not fit is refused, and old memory is let go."""

from pathlib import Path

import pytest

from tests.mesh.baseline import at_baseline, value
from tests.mesh.harness import SHORT_LEASES
from tests.mesh.one_engine import ask, prompt
from tests.mesh.test_two_engines import apart
from tests.mesh.tiny_model import NAME, make_tiny_model

pytestmark = pytest.mark.slow  # a mesh of six processes, two of which load torch

BLOCKS = 4


async def test_longer_prompts_are_refused_with_the_limit_before_they_are_computed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOSTLESS_MODELS", str(tmp_path / "models"))
    size = BLOCKS * make_tiny_model(tmp_path / "models", context=8192)
    async with apart(tmp_path, NAME, HOSTLESS_GPU_BACKEND_RECEIVE_BUFFER_BYTES=str(size), **SHORT_LEASES) as c:
        fits = await ask(c, prompt(1, 64 * BLOCKS))
        assert (fits.finish, fits.error) == ("length", None)
        computed = await value(c, "prefill-0", "prompt_tokens")
        longer = await ask(c, prompt(2, 64 * BLOCKS + 1))
        assert (longer.status, longer.text) == (400, "")
        assert longer.error
        assert longer.error["code"] == "context_length_exceeded"
        for words in ("has 257 tokens", "up to 256", "--receive-buffer-bytes"):
            assert words in longer.error["message"]
        assert await value(c, "prefill-0", "prompt_tokens") == computed
        await at_baseline(c)


def mapped_by(pid: int, of: str) -> set[str]:
    lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    return {line.split(maxsplit=5)[5] for line in lines if of in line}


async def test_a_decode_engine_that_starts_again_leaves_nothing_mapped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOSTLESS_MODELS", str(tmp_path / "models"))
    make_tiny_model(tmp_path / "models", context=8192)
    async with apart(tmp_path, NAME, **SHORT_LEASES) as c:
        prefill, seen = c.mesh.children["prefill-0"].pid, set[str]()
        for life in range(4):
            answer = await ask(c, prompt(life, 130))
            assert (answer.finish, answer.error) == ("length", None)
            arenas = {path for path in mapped_by(prefill, ".receive.") if ".gate." not in path}  # a prompt's own
            assert len(arenas) == 1, f"life {life}: {arenas}"
            seen |= arenas
            await c.mesh.kill("decode-0")  # without a word

            async def let_go() -> bool:
                return not mapped_by(prefill, ".receive.")

            await c.until("the dead engine's memory is unmapped", let_go, 60)
            await c.mesh.restart("decode-0")
        assert len(seen) == 4
        await at_baseline(c)
