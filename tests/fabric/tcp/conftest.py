"""What the tests of transport tcp share."""

from collections.abc import Iterator

import pytest

from services.fabric.tcp.agent import TcpPublisher


@pytest.fixture
def publisher() -> Iterator[TcpPublisher]:
    publisher = TcpPublisher("127.0.0.1:0")
    yield publisher
    publisher.close()
