"""What a streamed token takes: that every way of asking for it is measured."""

import pytest

from benchmarks.streaming import ENDPOINTS, by_a_worker, in_a_batch, streamed


@pytest.mark.parametrize("clients", [1, 2])
def test_every_way_is_measured(clients: int) -> None:
    assert in_a_batch(clients, 10, 0.0) > 0
    assert by_a_worker(clients, 10, 0.0) > 0
    for endpoint in ENDPOINTS:
        assert streamed(endpoint, clients, 10, 0.0) > 0
