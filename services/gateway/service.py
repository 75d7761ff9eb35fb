"""The gateway's process: its socket, its session, its HTTP server, and its orderly end."""

import asyncio
import logging
import signal
import socket
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from functools import partial
from importlib.metadata import version
from typing import cast

import uvicorn
from sse_starlette.sse import AppStatus

from services.common import open_files
from services.common.lifecycle import Lifecycle
from services.common.rpc import PortTaken
from services.gateway.admission import Admission
from services.gateway.app import make_app
from services.gateway.auth import Auth
from services.gateway.connection import Connection
from services.gateway.endpoints import Endpoints
from services.gateway.errors import unavailable
from services.gateway.exchange import Exchanges
from services.gateway.metrics import Metrics
from services.gateway.session import Session
from services.gateway.settings import GatewaySettings
from services.global_scheduler.client import SchedulerClient
from services.tokenizer.client import FrontendClient

log = logging.getLogger(__name__)

KEEP_ALIVE_S = 75  # longer than clients keep idle connections, so that they close first
LAST_WORDS_S = 2.0  # for error events to be written once the grace time is over


class Server(uvicorn.Server):
    """uvicorn, but the process's Lifecycle has the signals."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class Gateway:
    """A running gateway. `port` is the one it listens on."""

    def __init__(self, settings: GatewaySettings) -> None:
        """Listens at once, so that a taken port is known first. Raises PortTaken, SettingError."""
        self._settings = settings
        self.auth = Auth(settings.api_keys)
        self._socket = listen(settings.host, settings.port, settings.ping_s + settings.send_timeout_s)
        self.port: int = self._socket.getsockname()[1]

    async def run(self, life: Lifecycle) -> None:
        """Serves until `life` says stop, then drains: not ready at once, running requests have `grace_s` seconds,
        what is left ends with an error."""
        settings = self._settings
        client = FrontendClient(settings.tokenizer)
        async with AsyncExitStack() as stack:
            scheduler = None
            if settings.scheduler:
                scheduler = await stack.enter_async_context(SchedulerClient(settings.scheduler))
            admission = Admission(settings.max_running, settings.max_queue, settings.queue_timeout_s)
            number = version("hostless")
            exchanges = Exchanges(Session(client), admission, Metrics(), settings.silence_timeout_s, number)
            app = make_app(exchanges, Endpoints(exchanges, scheduler, number), self.auth, settings)
            # Its own reaction to a stopping server would cut streams that still have their grace time.
            AppStatus.enable_automatic_graceful_drain = False
            server = Server(
                uvicorn.Config(
                    app,
                    http=cast(type[asyncio.Protocol], partial(Connection, head_timeout_s=settings.body_timeout_s)),
                    ws="none",
                    lifespan="off",
                    log_config=None,
                    access_log=False,
                    proxy_headers=False,
                    server_header=False,
                    timeout_keep_alive=KEEP_ALIVE_S,
                    timeout_graceful_shutdown=int(LAST_WORDS_S),
                )
            )
            async with asyncio.TaskGroup() as tasks:
                talking = tasks.create_task(client.run())
                serving = tasks.create_task(server.serve([self._socket]))
                log.info("serving", extra={"url": f"http://{settings.host}:{self.port}"})
                await life.until_stopping()
                await self._drain(exchanges)
                server.should_exit = True
                await serving
                talking.cancel()
        log.info("stopped")

    async def _drain(self, exchanges: Exchanges) -> None:
        exchanges.draining = True
        log.info("stopping", extra={"grace_s": self._settings.grace_s})
        if await _within(exchanges.idle, self._settings.grace_s):
            return
        exchanges.fail(unavailable("the gateway is shutting down", "shutting_down"))
        if not await _within(exchanges.idle, LAST_WORDS_S):
            log.warning("some clients did not take the end of their streams")


async def serve(settings: GatewaySettings, life: Lifecycle) -> None:
    open_files.allow_most()
    gateway = Gateway(settings)
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGHUP, gateway.auth.reload)
    await gateway.run(life)


def listen(host: str, port: int, unread_timeout_s: float) -> socket.socket:
    """A listening socket. Its connections die when the peer has read nothing for `unread_timeout_s` seconds
    while there was something to read, or has silently gone for that long. Raises PortTaken, which names the address.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise PortTaken(f"can't listen on {host}:{port}: {error.strerror or error}") from None
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, max(1, int(unread_timeout_s / 2)))
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, max(1, int(unread_timeout_s / 4)))
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(unread_timeout_s * 1000))
        listener.bind(address)
        listener.listen(2048)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        raise PortTaken(f"can't listen on {host}:{port}: {error.strerror or error}; choose another --port") from None
    return listener


async def _within(event: asyncio.Event, seconds: float) -> bool:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return False
    return True
