"""What a request can be refused or ended with, as OpenAI's clients know it."""

from hostless.v1 import frontend_pb2


class RequestError(Exception):
    """Ends one request. `http_status` is what the gateway answers if nothing was sent yet."""

    def __init__(
        self, http_status: int, message: str, *, code: str = "", param: str = "", type: str = "invalid_request_error"
    ) -> None:
        super().__init__(message)
        self.http_status = http_status
        self.message = message
        self.code = code
        self.param = param
        self.type = type

    def to_proto(self) -> frontend_pb2.Error:
        return frontend_pb2.Error(
            http_status=self.http_status, type=self.type, code=self.code, message=self.message, param=self.param
        )


def invalid(message: str, param: str = "", code: str = "") -> RequestError:
    """400: the request is wrong in itself."""
    return RequestError(400, message, param=param, code=code)


def unavailable(message: str, code: str = "no_engine") -> RequestError:
    """503: right, but nothing can take it now."""
    return RequestError(503, message, code=code, type="service_unavailable")


def overloaded(message: str) -> RequestError:
    """429: right, but there are more than can be served."""
    return RequestError(429, message, code="overloaded", type="rate_limit_error")


def failed(message: str, code: str = "engine_error") -> RequestError:
    """500: the service's fault."""
    return RequestError(500, message, code=code, type="server_error")
