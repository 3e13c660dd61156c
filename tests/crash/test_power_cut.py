"""Power cuts at any moment: everything acknowledged is on disk, in every state that a cut could leave."""

import random
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest

from holdfast.store.embedded.lmdb import LmdbEngine
from tests.crash.image_check import Judge
from tests.crash.power import SECTOR, Cut, Platter, Subset, subsets
from tests.crash.recorder import Kind, Place, Record, Recorder
from tests.support.harness import PLAIN, Gateway, Received, Receiver, start
from tests.support.repetitions import amount

WEBHOOKS = 100
SENDERS = 16
SEEDED = 200
IMAGES = amount(4_000, 30_000, "HOLDFAST_IMAGES")
"""About as many are looked at; of a longer log only every other cut, or third, has more than two."""
SIZES = (0, 10, 500, 500, 1_500, 500, 3_000, 500, 9_000, 500, 70_000)
KEYS: dict[str, object] = {"retry__base": "20ms", "retry__max_retries": 2, "store__max_size": "64MiB"}


class Load(NamedTuple):
    acknowledged: frozenset[str]
    keyed: frozenset[str]


def put_under_load(gateway: Gateway, receiver: Receiver, count: int) -> Load:
    """Webhooks of many sizes: most are delivered, some at the second attempt, some never, some are not due at all."""
    receiver.answer = _answer_by_path()

    def send(first: int) -> Iterator[tuple[str, bool]]:
        with httpx.Client(**PLAIN) as client:
            for number in range(first, count, SENDERS):
                path = ("fine", "fine", "fine", "later", "never")[number % 5]
                headers = {"idempotency-key": f"k{number}"} if number % 3 == 0 else {}
                headers |= {"holdfast-delay": "1h"} if number % 7 == 0 else {}
                body = random.Random(number).randbytes(SIZES[number % len(SIZES)])
                target = f"http://{gateway.ingest}/{receiver.url}/{path}"
                answer = client.post(target, content=body, headers=headers)
                assert answer.status_code == 202
                yield answer.json()["id"], "idempotency-key" in headers

    with ThreadPoolExecutor(SENDERS) as senders:
        sent = [each for some in senders.map(lambda first: list(send(first)), range(SENDERS)) for each in some]
    return Load(frozenset(id for id, _ in sent), frozenset(id for id, keyed in sent if keyed))


def _answer_by_path() -> Callable[[Received], int]:
    met: set[str] = set()

    def answer(request: Received) -> int:
        again = request.id in met
        met.add(request.id)
        return 200 if request.path == "/fine" or (again and request.path == "/later") else 500

    return answer


def recorded_run(recorder: Recorder, store: Path, receiver: Receiver, count: int, **how: str) -> Load:
    with recorder.loaded(store, **how):
        gateway = start(store, **KEYS)
    with closing(gateway):
        load = put_under_load(gateway, receiver, count)
        assert gateway.stop() == 0
    return load


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store that was there before."""
    LmdbEngine(tmp_path / "store", 64 << 20).close()
    return tmp_path / "store"


def test_a_power_cut_loses_nothing_that_was_acknowledged(
    tmp_path: Path, store: Path, receiver: Receiver, measured: Callable[[str], None]
) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    recorder, judge = Recorder(tmp_path), Judge(tmp_path, **KEYS)
    image = judge.take(store)
    load = recorded_run(recorder, store, receiver, WEBHOOKS)
    records = recorder.records()
    images = 0
    with Platter(image) as platter:
        for number, cut, subset in _choices(platter, records, random.Random(seed)):
            platter.show(subset)
            held = judge.read()
            images += 1
            assert cut.acknowledged <= held.messages, f"cut {number}, image {images}, seed {seed}"
            assert cut.acknowledged & load.keyed <= held.keyed, f"cut {number}, image {images}, seed {seed}"
    assert cut.acknowledged == load.acknowledged
    commits = sum(record.kind is Kind.WRITTEN for record in records)
    assert judge.contents <= commits + 1, "an image was neither what one commit had left nor what the next one did"
    measured(
        f"power cut (seed {seed}): {images} images of {number + 1} cuts in {commits} commits of "
        f"{len(load.acknowledged)} webhooks; none lacks one that was acknowledged before it"
    )


def _choices(platter: Platter, records: list[Record], chance: random.Random) -> Iterator[tuple[int, Cut, Subset]]:
    """Every cut with every subset that is asked for; of a log that is too long for that, two of the other cuts."""
    sectors = sum(record.length for record in records if record.kind is Kind.WRITE) // SECTOR
    syncs = sum(record.kind is Kind.SYNCED for record in records)
    every = 1 + (2 * sectors + SEEDED * syncs) // IMAGES
    for number, cut in enumerate(platter.cuts(records)):
        # Cuts before a sync of data and of a meta page take turns.
        fully = number // 2 % every == 0
        choices = subsets(cut, chance, SEEDED) if fully else iter({frozenset(), frozenset(cut.unsynced)})
        yield from ((number, cut, subset) for subset in choices)


def test_a_disk_that_lies_about_syncs_loses_messages(tmp_path: Path, store: Path, receiver: Receiver) -> None:
    """The same procedure without syncs: it would notice."""
    recorder, judge = Recorder(tmp_path), Judge(tmp_path, **KEYS)
    image = judge.take(store)
    load = recorded_run(recorder, store, receiver, SENDERS, sync="lie")
    with Platter(image) as platter:
        (cut,) = platter.cuts(recorder.records())
        assert cut.acknowledged == load.acknowledged
        assert not judge.read().messages
        platter.show(frozenset(cut.unsynced))
        assert judge.read().messages == load.acknowledged


def test_a_power_cut_in_the_first_start_leaves_a_store_or_none(tmp_path: Path, receiver: Receiver) -> None:
    """A file that is only half a store would be refused by every start that follows."""
    recorder = Recorder(tmp_path)
    recorded_run(recorder, tmp_path / "store", receiver, 1)
    records = recorder.records()
    kinds = [record.kind for record in records]
    named, acknowledged = kinds.index(Kind.RENAMED), kinds.index(Kind.ACKNOWLEDGED)
    assert kinds.index(Kind.FOLDER_SYNCED) < named, "of the folder that the store's was made in"
    assert named < kinds.index(Kind.FOLDER_SYNCED, named) < acknowledged, "of the store's folder"
    image, found = tmp_path / "image.mdb", tmp_path / "found"
    image.touch()
    found.mkdir()
    beside = [record._replace(place=Place.DATA) for record in records[:named] if record.place is Place.BESIDE]
    with Platter(image) as platter:
        *_, cut = platter.cuts(beside)
        assert not cut.unsynced, "the file had a store's name before it was a store"
        for cut in platter.cuts(records[named:acknowledged]):
            for subset in subsets(cut, random.Random(0), seeded=20):
                platter.show(subset)
                shutil.copy(image, found / "data.mdb")
                LmdbEngine(found, 64 << 20).close()
