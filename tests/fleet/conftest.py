from collections.abc import Iterator
from contextlib import closing

import pytest

from tests.support.database_link import DatabaseLink


@pytest.fixture
def link(database: str) -> Iterator[DatabaseLink]:
    with closing(DatabaseLink(database)) as link:
        yield link
