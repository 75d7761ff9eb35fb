"""Whatever goes wrong becomes a response with an OpenAI error body, and is counted."""

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from services.gateway.errors import SERVER_ERROR, ApiError
from services.gateway.metrics import Metrics


def error_response(error: ApiError) -> Response:
    return Response(error.body(), error.status, error.headers, "application/json")


class Failures:
    """Starlette's exception handlers."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def response(self, error: ApiError) -> Response:
        self._metrics.refused[str(error.status), error.code or error.type] += 1
        return error_response(error)

    async def api_error(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, ApiError)
        if request.url.path == "/ready":  # an answer to a probe, not a request that was refused
            return error_response(error)
        return self.response(error)

    async def http_error(self, request: Request, error: Exception) -> Response:
        """404 and 405, which the router raises."""
        assert isinstance(error, HTTPException)
        path = request.url.path
        message = f"{request.method} {path}: {error.detail}"
        code = None
        if error.status_code == 404:
            message, code = f"there is nothing at {path}", "not_found"
        elif error.status_code == 405:
            allowed = (error.headers or {}).get("Allow", "")
            message, code = f"{path} does not take {request.method}; it takes {allowed}", "method_not_allowed"
        return self.response(ApiError(error.status_code, message, code=code, headers=error.headers))

    async def unexpected(self, request: Request, error: Exception) -> Response:
        """The exception itself goes on to the server, which logs it and closes the connection."""
        message = "the gateway failed on this request; its log says why, under the id in x-request-id"
        closing = {"Connection": "close"}
        return self.response(ApiError(500, message, type=SERVER_ERROR, code="internal_error", headers=closing))
