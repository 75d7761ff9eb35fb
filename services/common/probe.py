"""Health probe for containers: `python -m services.common.probe host:port` or `... http://host:port/path`.

Exit code 0: healthy. 1: not; one line says why. A gRPC target is asked through the standard health service.
"""

import asyncio
import sys
import urllib.error
import urllib.request

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from services.common import rpc

TIMEOUT_S = 3.0

_direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # whatever proxy the environment names


def main(argv: list[str]) -> int:
    if len(argv) != 1:
        print("usage: python -m services.common.probe host:port | http://host:port/path", file=sys.stderr)
        return 2
    problem = asyncio.run(ask(argv[0]))
    if problem:
        print(f"{argv[0]}: {problem}", file=sys.stderr)
    return 1 if problem else 0


async def ask(target: str) -> str | None:
    """None when the target is healthy, else why it is not, in a line. Takes up to TIMEOUT_S."""
    if target.startswith("http://"):
        return await asyncio.to_thread(_http, target)
    return await _grpc(target)


def _http(url: str) -> str | None:
    try:
        with _direct.open(url, timeout=TIMEOUT_S):
            return None
    except urllib.error.HTTPError as error:
        return f"status {error.code} {error.read(200).decode(errors='replace')}".rstrip()
    except OSError as error:
        return str(error)


async def _grpc(address: str) -> str | None:
    async with rpc.channel(address) as channel:
        try:
            stub = health_pb2_grpc.HealthStub(channel)
            reply = await stub.Check(health_pb2.HealthCheckRequest(), timeout=TIMEOUT_S)
        except grpc.aio.AioRpcError as error:
            return f"{error.code().name}: {error.details()}"
    if reply.status != health_pb2.HealthCheckResponse.SERVING:
        return str(health_pb2.HealthCheckResponse.ServingStatus.Name(reply.status))
    return None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
