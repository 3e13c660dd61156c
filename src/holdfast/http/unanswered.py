"""How many exchanges with one address have no answer yet, and the limit on that.

Names are cheap: any number of them may lead to one address that accepts connections and never answers. Only exchanges
on new connections count. A connection that is used again has answered before.
"""

from holdfast.http.errors import AddressBusy


class UnansweredByAddress:
    """`limit` is for each address. An address that answers quickly never reaches it."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._exchanges: dict[str, int] = {}

    def enter(self, address: str) -> None:
        """An exchange is about to dial an address. Raises AddressBusy."""
        exchanges = self._exchanges.get(address, 0)
        if exchanges >= self.limit:
            raise AddressBusy(address)
        self._exchanges[address] = exchanges + 1

    def leave(self, address: str) -> None:
        """It has an answer, or has ended without one."""
        exchanges = self._exchanges[address] - 1
        if exchanges:
            self._exchanges[address] = exchanges
        else:
            del self._exchanges[address]
