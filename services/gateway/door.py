"""What every request passes first: its id, the API key of /v1, and a closed door while the gateway stops."""

import re
import secrets

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from services.common import logs
from services.gateway.auth import Auth
from services.gateway.errors import ApiError, unavailable
from services.gateway.exchange import Exchanges
from services.gateway.failures import Failures

_REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")


class Door:
    """ASGI middleware. Sets `hostless.request_id` and, for /v1, `hostless.tenant` in the scope; every response
    carries the id as x-request-id. A client's id is taken if it is 1 to 128 of A-Z a-z 0-9 . _ : -, else one is
    made."""

    def __init__(self, app: ASGIApp, auth: Auth, exchanges: Exchanges, failures: Failures) -> None:
        self._app = app
        self._auth = auth
        self._exchanges = exchanges
        self._failures = failures

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        given = headers.get("x-request-id", "")
        request_id = given if _REQUEST_ID.fullmatch(given) else f"req-{secrets.token_hex(8)}"
        logs.request_id.set(request_id)
        scope["hostless.request_id"] = request_id

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)["x-request-id"] = request_id
            await send(message)

        try:
            if scope["path"].startswith("/v1/"):
                self._check(scope, headers)
        except ApiError as error:
            await self._failures.response(error)(scope, receive, send_with_id)
        else:
            await self._app(scope, receive, send_with_id)

    def _check(self, scope: Scope, headers: Headers) -> None:
        scope["hostless.tenant"] = self._auth.tenant(headers.get("authorization"))
        if self._exchanges.draining:
            raise unavailable("the gateway is shutting down; ask another one", "shutting_down")
