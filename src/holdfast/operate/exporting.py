"""Dead letters written out whole, one JSON object a line: with headers and bodies, nothing redacted."""

import base64
from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import Any

from holdfast.operate import shapes
from holdfast.store.port import DeadFilter, Store, Story

STEP = 50


async def dead_lines(store: Store, select: DeadFilter) -> AsyncGenerator[dict[str, Any], None]:
    while True:
        page, after = await store.dead(select, STEP)
        for story in page:
            yield _whole(story)
        if after is None:
            return
        select = replace(select, after=after)


def _whole(story: Story) -> dict[str, Any]:
    """The message as the control socket shows it, and what was sent. A body that is not UTF-8 is base64."""
    message = story.message
    document = shapes.message(story, in_flight=False, masked=False)
    document["headers"] = [[name.decode("latin-1"), value.decode("latin-1")] for name, value in message.headers]
    try:
        document["body"] = message.body.decode()
    except UnicodeDecodeError:
        document["body_base64"] = base64.b64encode(message.body).decode()
    return document
