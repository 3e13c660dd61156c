"""HTTP/1.1 on trio, for both sides of a gateway. This room knows nothing of webhooks.

errors.py           what can go wrong, drawn as one tree
problem.py          refusals as RFC 9457 problem documents
message.py          Request, Response, StreamingResponse and Pending, and how a response becomes bytes
strict.py           the grammar of heads: what is refused, whichever engine reads it
cutter.py           where a head ends
body.py             bodies by length, in chunks, until close
codec.py            the sans-IO parsers and the choice of engine
codec_h11.py        the engine that is always there
codec_httptools.py  the fast one
familiar.py         heads that were read before
wire.py             a connected socket that waits only when it must; readiness.py hears for all of them
deadlines.py        many deadlines under one timer
listeners.py        TCP and Unix sockets to listen on
server.py           the accept loops, the limit on connections, stopping
receiving.py        how many bytes of request bodies are held at once
server_connection.py the loop of one connection
connection.py       one dialled connection, plain or TLS
tunnel.py           a way through a forward proxy
pool.py             idle connections by origin
address_limit.py    how many exchanges one address may have under way
transport.py        one exchange from address to answer, under one deadline
httpx_face.py       the same as an httpx transport; the only module here that imports httpx
"""
