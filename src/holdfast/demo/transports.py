"""The demo speaks plain HTTP on loopback."""

import ssl

from holdfast.http.transport import Resolve, Transport

KEPT_ALIVE = 50.0


def plain_transport(resolve: Resolve, *, max_answer: int, max_idle: int) -> Transport:
    return Transport(
        resolve,
        ssl_context=lambda origin: ssl.create_default_context(),
        max_answer=max_answer,
        max_idle_per_origin=max_idle,
        idle_timeout=KEPT_ALIVE,
    )
