"""An open connection to an origin, plain or TLS.

Both kinds fail with `OSError`, so their users need not know the kind. A peer that misuses TLS causes a `TlsError`.
"""

import errno
import math
import ssl

import trio

from holdfast.http.deadlines import Deadline, Deadlines
from holdfast.http.dial import READ_SIZE, Dialled, Origin
from holdfast.http.exceptions import TlsEnded, TlsError
from holdfast.http.wire import Data, Wire

JOINED = 4096
"""Bodies up to this size are joined with the head, which is cheaper than sending both."""
TLS_AT_ONCE = 16384
HANDSHAKE_BYTES = 256 << 10
"""The limit for a handshake. A chain of certificates takes a few KiB, and some peers never finish."""
DATALESS_RECORDS = 32
"""The limit of TLS records without data in one exchange. A few tickets follow a handshake, and keys seldom change."""

_TLS_RECORD_TYPES = range(20, 25)
_HANDSHAKE = b"\x16"
_SERVER_HELLO, _KEY_SHARE, _FINITE_FIELDS = b"\x02", 51, range(0x0100, 0x0200)
_TLS_VERSIONS = frozenset({"TLSv1.2", "TLSv1.3"})


class Connection:
    """A plain connection. `address` is the peer's, "ip:port".

    When the `deadline` of an exchange passes, the connection is closed and marked `expired`. All waits of an exchange
    are on its connection, so it needs no cancel scope.
    """

    def __init__(self, origin: Origin, dialled: Dialled, deadlines: Deadlines) -> None:
        self.origin = origin
        self.address = dialled.address
        self.deadline = Deadline(deadlines, self._expire)
        self.expired = False
        self._wire = dialled.wire

    async def send_some(self, head: bytes, body: bytes) -> int:
        """Sends as much as fits into the socket's buffer. Returns the number of bytes."""
        if len(body) <= JOINED:
            return await self._wire.send(head + body)
        return await self._wire.send_both(head, body)

    async def send_rest(self, head: bytes, body: bytes, sent: int) -> None:
        """Sends everything after the first `sent` bytes."""
        if sent < len(head):
            await self._send_all(memoryview(head)[sent:])
        await self._send_all(memoryview(body)[max(sent - len(head), 0) :])

    async def _send_all(self, data: memoryview) -> None:
        await self._wire.send_all(data)

    async def receive(self) -> bytes:
        return await self._wire.receive(READ_SIZE)

    def is_quiet(self) -> bool:
        """Whether an idle connection can be used: open, with nothing to read."""
        return self._wire.is_quiet()

    def close(self) -> None:
        self.deadline.drop()
        self._wire.close()

    def _expire(self) -> None:
        self.expired = True
        self.close()


class TlsConnection(Connection):
    def __init__(self, origin: Origin, dialled: Dialled, deadlines: Deadlines, context: ssl.SSLContext) -> None:
        super().__init__(origin, dialled, deadlines)
        self._records = _RecordStream(dialled.wire)
        try:
            self._stream = trio.SSLStream(self._records, context, server_hostname=origin.host, https_compatible=True)
        except ValueError as error:
            raise TlsError(f"{origin.host!r} can't be in a certificate: {error}", self.address) from error

    async def handshake(self) -> None:
        try:
            await self._stream.do_handshake()
        except (trio.BrokenResourceError, OSError) as error:
            raise TlsError(f"TLS handshake failed: {_reason(error)}", self.address) from error
        self._records.allowance = math.inf
        if self._stream.version() not in _TLS_VERSIONS:
            raise TlsError(f"{self._stream.version()} is too old, TLS 1.2 is needed", self.address)

    async def send_some(self, head: bytes, body: bytes) -> int:
        self._records.dataless = 0
        if len(head) + len(body) > TLS_AT_ONCE:
            return 0
        data = head + body
        await self._send_all(memoryview(data))
        return len(data)

    async def _send_all(self, data: memoryview) -> None:
        """Sends in slices: TLS holds an encrypted copy of everything that it gets at once."""
        for place in range(0, len(data), TLS_AT_ONCE):
            try:
                await self._stream.send_all(data[place : place + TLS_AT_ONCE])
            except trio.BrokenResourceError as error:
                raise ConnectionResetError(errno.ECONNRESET, _reason(error)) from error
            if self._records.send_error is not None:
                raise OSError(*self._records.send_error)

    async def receive(self) -> bytes:
        try:
            data = await self._stream.receive_some(READ_SIZE)
        except trio.BrokenResourceError as error:
            if isinstance(error.__cause__, ssl.SSLError):
                raise TlsEnded(f"TLS ended the connection: {_reason(error)}") from error
            raise ConnectionResetError(errno.ECONNRESET, _reason(error)) from error
        self._records.dataless -= 1
        return bytes(data)

    def is_quiet(self) -> bool:
        return not self._records.held and not self._stream.pending() and super().is_quiet()


class _RecordStream(trio.abc.Stream):
    """The transport stream below TLS.

    It passes up one record at a time, so unexpected records stay visible in `held`. It stores a send error instead of
    raising it: TLS would stop reading then, and the peer may have sent an answer before it closed.
    """

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self.held = bytearray()
        self.allowance: float = HANDSHAKE_BYTES
        self._hello_came = False
        self.dataless: float = -math.inf
        """Records of this exchange minus those with data. Records of a handshake don't count."""
        self.send_error: tuple[int, str] | None = None
        """Number and text. The error itself would hold the frames that were sending, and their data."""

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        while (size := self._next_record()) is None:
            data = await self._wire.receive(READ_SIZE)
            if not data:
                size = len(self.held)
                break
            self.allowance -= len(data)
            if self.allowance < 0:
                raise OSError(errno.EMSGSIZE, "the handshake is larger than any valid one")
            self.held += data
        if self.dataless > DATALESS_RECORDS:
            raise TlsError("the peer sends too many TLS records without data")
        self.dataless += 1
        record = bytes(self.held[:size])
        del self.held[:size]
        if not self._hello_came and record[:1] == _HANDSHAKE:
            self._hello_came = True
            _refuse_slow_exchange(record)
        return record

    def _next_record(self) -> int | None:
        """Returns the size of the first record in `held`, or None if it is incomplete."""
        if self.held and self.held[0] not in _TLS_RECORD_TYPES:
            return len(self.held)
        size = 5 + int.from_bytes(self.held[3:5], "big")
        return size if len(self.held) >= max(size, 5) else None

    async def send_all(self, data: Data) -> None:
        if data and self.send_error is None:
            try:
                await self._wire.send_all(data)
            except OSError as error:
                self.send_error = error.errno or errno.EIO, error.strerror or str(error)

    async def wait_send_all_might_not_block(self) -> None:
        await trio.lowlevel.wait_writable(self._wire.socket)

    async def aclose(self) -> None:
        self._wire.close()
        await trio.lowlevel.checkpoint()


def _refuse_slow_exchange(record: bytes) -> None:
    """Raises OSError if the server's first handshake record chooses a finite field for the key exchange of TLS 1.3.

    With 8,192 bits this takes 0.1 s of CPU, before any certificate is checked, and `ssl` has no option against it. A
    HelloRetryRequest has the same format and fixes the group for the second hello. A hello that is split into several
    records could hide its choice. It is refused, since no server has a reason to send one.
    """
    hello, size = record[9:], int.from_bytes(record[6:9], "big")
    if len(record) < 9 or record[5:6] != _SERVER_HELLO or len(hello) < size:
        raise OSError(errno.EPROTO, "its first record is not a whole server hello")
    place = 40 + hello[34] if size > 34 else size  # after version, random, session id, cipher suite and compression
    while place + 4 <= size:
        kind, length = (int.from_bytes(hello[at : at + 2], "big") for at in (place, place + 2))
        place += 4
        if kind == _KEY_SHARE and int.from_bytes(hello[place : place + 2], "big") in _FINITE_FIELDS:
            raise OSError(errno.EPROTO, "it chose a finite field for the key exchange, which takes too long")
        place += length


def _reason(error: BaseException) -> str:
    cause = error.__cause__ or error
    if isinstance(cause, ssl.SSLCertVerificationError):
        return f"certificate refused: {cause.verify_message}"
    if isinstance(cause, ssl.SSLError):
        return cause.reason or str(cause)
    if isinstance(cause, OSError) and cause.strerror:
        return cause.strerror
    return str(cause) or "the connection was closed"
