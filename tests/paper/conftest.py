"""What tests of paper accounts share."""

from collections.abc import Iterator

import pytest

from tests.paper.fake_alpaca import FakeAlpaca


@pytest.fixture(autouse=True)
def close_servers() -> Iterator[None]:
    """Close the servers of a test's accounts."""
    yield
    while FakeAlpaca.servers:
        server = FakeAlpaca.servers.pop()
        server.shutdown()
        server.server_close()
