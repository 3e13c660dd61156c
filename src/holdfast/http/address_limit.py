"""How many exchanges on new connections one address may have under way.

Names are cheap: any number of them may lead to one address that accepts connections and never answers. Exchanges on a
connection that is used again do not count: it has answered before.
"""

from holdfast.http.errors import AddressBusy


class AddressLimit:
    """`limit` is for each address. One that answers quickly never reaches it for long."""

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
        exchanges = self._exchanges[address] - 1
        if exchanges:
            self._exchanges[address] = exchanges
        else:
            del self._exchanges[address]
