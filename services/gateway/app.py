"""The HTTP application: routes put together."""

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.routing import Route

from services.gateway.auth import Auth
from services.gateway.completions import Completions
from services.gateway.door import Door
from services.gateway.endpoints import Endpoints
from services.gateway.errors import ApiError
from services.gateway.exchange import Exchanges
from services.gateway.failures import Failures
from services.gateway.long_bodies import LongBodies
from services.gateway.openai_schema import read_chat, read_completion
from services.gateway.settings import GatewaySettings


def make_app(exchanges: Exchanges, endpoints: Endpoints, auth: Auth, settings: GatewaySettings) -> Starlette:
    failures = Failures(exchanges.metrics)
    long_bodies = LongBodies()
    chat = Completions(exchanges, settings, long_bodies, read_chat)
    completion = Completions(exchanges, settings, long_bodies, read_completion)
    app = Starlette(
        routes=[
            Route("/v1/chat/completions", chat, methods=["POST"], name="chat"),
            Route("/v1/completions", completion, methods=["POST"], name="completion"),
            Route("/v1/models", endpoints.models),
            Route("/v1/models/{model:path}", endpoints.model),
            Route("/health", endpoints.health),
            Route("/ready", endpoints.ready),
            Route("/version", endpoints.version),
            Route("/metrics", endpoints.metrics),
        ],
        middleware=[Middleware(Door, auth=auth, exchanges=exchanges, failures=failures)],
        exception_handlers={
            ApiError: failures.api_error,
            HTTPException: failures.http_error,
            Exception: failures.unexpected,
        },
    )
    app.router.redirect_slashes = False
    return app
