"""Many messages at once, in steps: to interrupt it between two of them, and to repeat it, is always safe."""

import json
from dataclasses import dataclass

from holdfast.cli.failure import Failure
from holdfast.cli.gateway import Document, Gateway
from holdfast.cli.progress import Bar, between_steps
from holdfast.cli.text import count

STEP = 250
"""Messages a call: few enough that Ctrl-C ends it at once, enough that 50,000 take a moment."""

# A filter that matches little goes through all there is before it is answered.
PATIENCE = 600.0


@dataclass
class Bulk:
    """What is asked for, and how far it came. `verb` is also the answer's name for the count."""

    path: str
    verb: str
    noun: str
    body: Document
    limit: int | None = None
    count: int = 0
    done: bool = False

    def result(self) -> Document:
        return {self.verb: self.count, "done": self.done}

    def told(self) -> str:
        what = f"{count(self.count, self.noun)} {self.verb}"
        return what if self.done else f"{what}, then it was cut short: the same command goes on with the rest"


def carry_out(gateway: Gateway, bulk: Bulk, total: int | None, as_json: bool) -> None:
    """All of it, or as far as it came before Ctrl-C or a failure; either way one line says how much was done."""
    try:
        with Bar(bulk.verb, total) as bar, between_steps(bar.say_ending) as stop_asked:
            while not bulk.done and not stop_asked():
                _step(gateway, bulk)
                bar.show(bulk.count)
    except Failure:
        if bulk.count:
            _tell(bulk, as_json)
        raise
    except KeyboardInterrupt:
        _tell(bulk, as_json)
        raise
    _tell(bulk, as_json)
    if not bulk.done:
        raise KeyboardInterrupt


def _step(gateway: Gateway, bulk: Bulk) -> None:
    most = STEP if bulk.limit is None else min(STEP, bulk.limit - bulk.count)
    answer = gateway.post(bulk.path, {**bulk.body, "limit": most}, PATIENCE)
    bulk.count += answer[bulk.verb]
    bulk.done = answer["done"] or bulk.count == bulk.limit


def _tell(bulk: Bulk, as_json: bool) -> None:
    print(json.dumps(bulk.result()) if as_json else bulk.told(), flush=True)
