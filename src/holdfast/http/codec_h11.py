"""The engine that is always available: h11, pure Python."""

import h11

from holdfast.http.request_response import Headers

# head_grammar.py limits heads already, so h11's own limit must never decide.
_NO_LIMIT = 1 << 30


class H11Engine:
    name = "h11"

    def read_request(self, raw: bytes) -> tuple[str, bytes, Headers]:
        event = _read(h11.SERVER, raw)
        if not isinstance(event, h11.Request):
            raise ValueError("h11 found no request")
        return event.method.decode("ascii"), event.target, list(event.headers)

    def read_response(self, raw: bytes) -> Headers:
        event = _read(h11.CLIENT, raw)
        if not isinstance(event, h11.Response | h11.InformationalResponse):
            raise ValueError("h11 found no response")
        return list(event.headers)


def _read(role: type[h11.SERVER] | type[h11.CLIENT], raw: bytes) -> object:
    connection = h11.Connection(role, max_incomplete_event_size=_NO_LIMIT)
    if role is h11.CLIENT:
        # h11 reads a response only after a request. Any request will do.
        connection.send(h11.Request(method="GET", target="/", headers=[("host", "-")]))
        connection.send(h11.EndOfMessage())
    connection.receive_data(raw)
    try:
        return connection.next_event()
    except h11.RemoteProtocolError as error:
        raise ValueError(str(error)) from error


ENGINE = H11Engine()
