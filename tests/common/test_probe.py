"""The container health probe says what is wrong and exits by it."""

import asyncio
import sys

from services.common import rpc


async def probe(target: str) -> tuple[int | None, str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "services.common.probe", target, stderr=asyncio.subprocess.PIPE
    )
    _, stderr = await asyncio.wait_for(process.communicate(), 30)
    return process.returncode, stderr.decode()


async def test_follows_the_health_service() -> None:
    async with rpc.serve("127.0.0.1:0", lambda server: None, []) as server:
        assert (await probe(f"127.0.0.1:{server.port}"))[0] == 0
        await server.set_serving(False)
        code, why = await probe(f"127.0.0.1:{server.port}")
        assert (code, "NOT_SERVING" in why) == (1, True)


async def test_nothing_there() -> None:
    for target in ("127.0.0.1:1", "http://127.0.0.1:1/health"):
        code, why = await probe(target)
        assert code == 1
        assert target in why
