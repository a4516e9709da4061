"""What tests of paper accounts share."""

from collections.abc import Iterator
from datetime import datetime

import pytest

from tests.paper.fake_alpaca import FakeAlpaca


@pytest.fixture(autouse=True)
def close_servers(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Step in the evening of New York; close the servers of a test's accounts."""
    monkeypatch.setattr("training.paper.alpaca.new_york", lambda: datetime(2024, 1, 2, 20))
    yield
    while FakeAlpaca.servers:
        server = FakeAlpaca.servers.pop()
        server.shutdown()
        server.server_close()
