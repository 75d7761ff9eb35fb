"""grpc.aio as every service uses it: health, reflection, keepalive, limits, deadlines and traces."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection
from opentelemetry.trace import SpanKind

from services.common import telemetry

DEADLINE_S = 5.0
"""Of a unary call that names no other; every call has one."""

MAX_MESSAGE_BYTES = 32 << 20

_COMMON = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
)
_SERVER = (
    *_COMMON,
    ("grpc.so_reuseport", 0),  # a taken port must be an error, not shared
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
)
_CLIENT = (
    *_COMMON,
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2_000),
)


class PortTaken(OSError):
    """The address can't be listened on; the message names it."""


class RpcServer:
    """A running server. `set_serving(False)` makes the standard health service say so."""

    def __init__(self, port: int, health_servicer: health.aio.HealthServicer, names: Sequence[str]) -> None:
        self.port = port
        self._health = health_servicer
        self._names = names

    async def set_serving(self, serving: bool) -> None:
        status = health_pb2.HealthCheckResponse.SERVING if serving else health_pb2.HealthCheckResponse.NOT_SERVING
        for name in ("", *self._names):
            await self._health.set(name, status)


@asynccontextmanager
async def serve(
    address: str,
    register: Callable[[grpc.aio.Server], None],
    names: Sequence[str],
    grace_s: float = 5.0,
    serving: bool = True,
) -> AsyncIterator[RpcServer]:
    """Serves until the block ends, then gives calls under way `grace_s` seconds.

    `names` are the full service names for health and reflection, e.g. "hostless.v1.KvStore".
    `serving` is what the health service says at first. Port 0 picks a free one. Raises PortTaken.
    """
    server = grpc.aio.server(options=_SERVER, interceptors=(_ServerTrace(),))
    register(server)
    servicer = health.aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    reflection.enable_server_reflection((*names, health.SERVICE_NAME, reflection.SERVICE_NAME), server)
    try:
        port = server.add_insecure_port(address)
    except RuntimeError:
        port = 0
    if not port:
        raise PortTaken(f"can't listen on {address}: taken by another program, or not an address of this machine")
    await server.start()
    running = RpcServer(port, servicer, names)
    await running.set_serving(serving)
    try:
        yield running
    finally:
        await servicer.enter_graceful_shutdown()
        await asyncio.shield(server.stop(grace_s))


def channel(address: str) -> grpc.aio.Channel:
    """A channel that reconnects by itself; calls on it carry the trace and have a deadline."""
    return grpc.aio.insecure_channel(address, options=_CLIENT, interceptors=(_ClientTrace(),))


async def wait_ready(channel: grpc.aio.Channel, timeout_s: float) -> None:
    """Returns when the channel is connected; raises TimeoutError."""
    async with asyncio.timeout(timeout_s):
        await channel.channel_ready()


class _ClientTrace(grpc.aio.UnaryUnaryClientInterceptor):
    async def intercept_unary_unary(self, continuation: Any, details: Any, request: Any) -> Any:
        metadata = details.metadata
        if header := telemetry.traceparent():
            metadata = grpc.aio.Metadata(*(metadata or ()), ("traceparent", header))
        timeout = DEADLINE_S if details.timeout is None else details.timeout
        details = grpc.aio.ClientCallDetails(
            details.method, timeout, metadata, details.credentials, details.wait_for_ready
        )
        return await continuation(details, request)


class _ServerTrace(grpc.aio.ServerInterceptor):
    async def intercept_service(self, continuation: Callable[[Any], Awaitable[Any]], details: Any) -> Any:
        handler = await continuation(details)
        carrier = {k: v for k, v in details.invocation_metadata or () if k == "traceparent"}
        if not carrier or handler is None or not handler.unary_unary or not telemetry.recording():
            return handler
        inner, name, parent = handler.unary_unary, details.method.lstrip("/"), telemetry.context_of(carrier)

        async def traced(request: Any, context: Any) -> Any:
            with telemetry.tracer.start_as_current_span(name, context=parent, kind=SpanKind.SERVER):
                return await inner(request, context)

        return grpc.unary_unary_rpc_method_handler(traced, handler.request_deserializer, handler.response_serializer)
