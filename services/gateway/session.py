"""The gateway's one session with its tokenizer, in the gateway's own terms: replies and API errors."""

from collections.abc import Sequence

from hostless.v1 import frontend_pb2 as pb
from services.gateway.errors import unavailable
from services.gateway.reply import Reply
from services.tokenizer.client import FrontendClient, FrontendUnavailable

DESCRIBE_TIMEOUT_S = 1.0


class Session:
    """All requests of this gateway travel on it. When it is lost they have failed."""

    def __init__(self, client: FrontendClient) -> None:
        self._client = client

    @property
    def address(self) -> str:
        return self._client.address

    @property
    def connected(self) -> bool:
        return self._client.connected

    def submit(self, reply: Reply, submits: Sequence[pb.Submit]) -> None:
        """Sends one Submit a choice of `reply`, with the next message. Raises ApiError(503) while not connected."""
        try:
            for choice, submit in zip(reply.choices, submits, strict=True):
                choice.id = self._client.submit(submit, choice)
        except FrontendUnavailable as error:
            raise unavailable(str(error)) from None

    def forget(self, reply: Reply) -> None:
        """Cancels what of `reply` is unfinished, with the next message, and delivers nothing more. Idempotent."""
        for choice in reply.choices:
            self._client.cancel(choice.id)

    async def describe(self) -> pb.DescribeReply:
        """Models and readiness. Raises ApiError(503) if the tokenizer doesn't answer within a second."""
        try:
            return await self._client.describe(DESCRIBE_TIMEOUT_S)
        except FrontendUnavailable as error:
            raise unavailable(str(error)) from None
