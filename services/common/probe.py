"""Health probe for containers: `python -m services.common.probe host:port` or `... http://host:port/path`.

Exit code 0: healthy. 1: not; one line says why. A gRPC target is asked through the standard health service.
"""

import asyncio
import http.client
import json
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
        return _told(error)
    except OSError as error:
        return _unreached(str(error))
    except http.client.HTTPException:
        return "what listens there speaks no HTTP"


async def _grpc(address: str) -> str | None:
    async with rpc.channel(address) as channel:
        try:
            stub = health_pb2_grpc.HealthStub(channel)
            reply = await stub.Check(health_pb2.HealthCheckRequest(), timeout=TIMEOUT_S)
        except grpc.aio.AioRpcError as error:
            return _unreached(f"{error.code().name}: {error.details()}")
    serving = reply.status == health_pb2.HealthCheckResponse.SERVING
    return None if serving else "not ready: it starts, or ends"


def _told(error: urllib.error.HTTPError) -> str:
    """What the service itself says; Hostless's do as OpenAI's errors."""
    try:
        body = error.read(4096).decode(errors="replace")
        return str(json.loads(body)["error"]["message"])
    except (OSError, http.client.HTTPException):  # it was cut
        return f"status {error.code}"
    except (ValueError, TypeError, KeyError):
        return f"status {error.code} {body[:200]}".rstrip()


def _unreached(reason: str) -> str:
    """The usual ones in plain words: systems and libraries have many for them."""
    if "refused" in reason:
        return "nothing listens there"
    if "timed out" in reason or reason.startswith("DEADLINE_EXCEEDED"):
        return "no answer"
    return reason


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
