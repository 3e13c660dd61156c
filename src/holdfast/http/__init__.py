"""HTTP/1.1 on trio: a server and a client transport. Knows nothing of webhooks.

exceptions.py         all exceptions as one tree, and problem documents (RFC 9457)
request_response.py   Request, Response, StreamingResponse, PendingResponse, and their encoding
head_grammar.py       where a head ends, and everything that is refused in one
body.py               decoders for bodies: by length, in chunks, until the connection ends
codec.py              the parsers without I/O, the cache of parsed heads, the choice of an engine
codec_h11.py          the engine that is always available
codec_httptools.py    the fast engine
wire.py               a connected socket that waits only if it must
deadlines.py          many deadlines under one timer
sockets.py            TCP and Unix sockets to listen on
server.py             accept loops, limits on connections and on bodies, stopping
server_connection.py  one connection of the server
dial.py               how a connection is opened: directly or through a forward proxy
connection.py         an open connection to an origin, plain or TLS
pool.py               idle connections by origin, and the limit for one address
transport.py          one exchange, from the address to the answer, under one deadline
httpx_transport.py    the transport for httpx clients; the only module that imports httpx
"""
