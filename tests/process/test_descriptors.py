"""Who gets the file descriptors when there are few."""

import resource

import pytest

from holdfast.http.transport import MAX_IDLE
from holdfast.process.descriptors import FEWEST, OPERATORS, OWN, share_out

DELIVERIES = 320


@pytest.mark.parametrize("limit", [resource.RLIM_INFINITY, 1 << 20, OWN + OPERATORS + DELIVERIES + 1024 + MAX_IDLE])
def test_with_enough_everybody_gets_what_they_ask_for(limit):
    assert share_out(limit, 1024, DELIVERIES) == (1024, MAX_IDLE)


@pytest.mark.parametrize("limit", range(0, 3000, 50))
def test_with_few_deliveries_and_operators_come_first(limit):
    ingest, idle = share_out(limit, 1024, DELIVERIES)
    assert FEWEST <= ingest <= 1024
    assert 0 <= idle <= MAX_IDLE
    left = limit - OWN - OPERATORS - DELIVERIES
    assert ingest + idle <= max(left, FEWEST)


def test_fewer_are_never_made_more():
    assert share_out(100, 4, DELIVERIES).ingest == 4
