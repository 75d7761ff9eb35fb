"""Errors as OpenAI's clients expect them: {"error": {"message", "type", "param", "code"}}."""

import json
from collections.abc import Mapping

from hostless.v1 import frontend_pb2 as pb

SERVER_ERROR = "server_error"
INVALID_REQUEST = "invalid_request_error"


class ApiError(Exception):
    """What a client is told: an HTTP status with a body, or an error event once its stream has begun."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        type: str = INVALID_REQUEST,
        code: str | None = None,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.type = type
        self.code = code
        self.param = param
        self.headers = dict(headers or {})

    def body(self) -> bytes:
        """The JSON body, in ASCII."""
        error = {"message": self.message, "type": self.type, "param": self.param, "code": self.code}
        return json.dumps({"error": error}, separators=(",", ":")).encode()


def invalid(param: str | None, message: str, code: str | None = None) -> ApiError:
    """400 about one field; the message says what is wrong and what would be right."""
    return ApiError(400, message, param=param, code=code)


def not_supported(param: str, message: str) -> ApiError:
    """400 about something OpenAI's API has and Hostless doesn't have yet."""
    return ApiError(400, message, param=param, code="unsupported_parameter")


def unavailable(message: str, code: str = "service_unavailable", retry_after_s: int = 1) -> ApiError:
    """503: the same request may well succeed a little later."""
    return ApiError(503, message, type=SERVER_ERROR, code=code, headers={"Retry-After": str(retry_after_s)})


def from_tokenizer(error: pb.Error) -> ApiError:
    """A request's end as the tokenizer put it. A status that is no error's counts as 500."""
    status = error.http_status if 400 <= error.http_status <= 599 else 500
    retry = {"Retry-After": "1"} if status in (429, 503) else None
    return ApiError(
        status,
        error.message or "the request failed",
        type=error.type or (SERVER_ERROR if status >= 500 else INVALID_REQUEST),
        code=error.code or None,
        param=error.param or None,
        headers=retry,
    )
