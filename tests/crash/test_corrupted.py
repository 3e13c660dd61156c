"""Bytes overwritten in a stopped store: unreadable records are skipped and logged, and everything else is delivered."""

import json
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

from holdfast.core.errors import StoreUnusable
from holdfast.core.message import parse_id
from holdfast.store.embedded.ledger import last_time
from holdfast.store.embedded.lmdb import LmdbEngine
from holdfast.store.embedded.tables import META_LATEST, Moment, Table, Transaction, moment_key, prefixed
from holdfast.store.records import lane_key, stamp
from tests.support import fork_server
from tests.support.harness import Gateway, Receiver, running, settings, until

GARBAGE = b"\xc1\xff\xfegarbage"
PAGE = 4_096
LARGE = b"y" * 10_000
MARKER = b"a body that can be found in the file"
SETTINGS = {"store__max_size": "64MiB", "retry__base": "200ms", "retry__max_retries": "20"}


def filled(store: Path, receiver: Receiver, number: int = 12) -> list[bytes]:
    """A killed gateway's store with messages that were tried and wait for their retry; their ids."""
    receiver.answer = lambda request: 500
    with running(store, **SETTINGS) as gateway:
        answers = [
            gateway.post(f"{receiver.url}/hook", LARGE if each < 2 else MARKER, Idempotency_Key=f"key {each}")
            for each in range(number)
        ]
        ids = [answer.json()["id"] for answer in answers]
        until(lambda: gateway.message(ids[-1]).get("attempts"))
        gateway.kill()
    receiver.answer = lambda request: 200
    return [parse_id(id) or b"" for id in ids]


def spoil(store: Path, act: Callable[[Transaction], object]) -> None:
    engine = LmdbEngine(store, 64 << 20)
    with (writing := engine.write()) as transaction:
        act(transaction)
        writing.commit()
    engine.close()


def text(id: bytes) -> str:
    return f"msg_{id.hex()}"


def fsck(store: Path, *flags: str) -> "subprocess.CompletedProcess[str]":
    return fork_server.run("fsck", "--json", *flags, env=settings(store, **SETTINGS))


def told(gateway: Gateway) -> list[dict[str, object]]:
    return [event for event in gateway.events() if event["event"] == "record_broken"]


def delivered(receiver: Receiver) -> set[str]:
    return {request.id for request in receiver.requests if request.status == 200}


def test_broken_messages_are_set_aside_and_the_rest_is_delivered(tmp_path: Path, receiver: Receiver) -> None:
    store = tmp_path / "store"
    ids = filled(store, receiver)
    message, place, wrong_place, body = ids[3], ids[4], ids[5], ids[0]

    def damage(transaction: Transaction) -> None:
        record = transaction.get(Table.MESSAGES, message) or b""
        transaction.put(Table.MESSAGES, message, GARBAGE + record[len(GARBAGE) :])
        transaction.put(Table.PLACES, place, b"\xff" + (transaction.get(Table.PLACES, place) or b"")[1:])
        # One that can be read, and says that it is dead.
        transaction.put(Table.PLACES, wrong_place, b"\x03" + (transaction.get(Table.PLACES, wrong_place) or b"")[1:])
        transaction.delete(Table.BODIES, body + b"\0\1")

    spoil(store, damage)
    broken = {text(id) for id in (message, place, wrong_place, body)}
    with running(store, **SETTINGS) as gateway:
        until(lambda: delivered(receiver) == {text(id) for id in ids} - broken)
        until(lambda: {event["message"] for event in told(gateway)} == broken)
        assert "holdfast_broken_records_total 4" in gateway.get("/metrics").text
        assert gateway.stop() == 0
    found = fsck(store)
    assert found.returncode == 1
    assert broken <= {json.loads(line)["id"] for line in found.stdout.splitlines()}
    fsck(store, "--repair")
    assert fsck(store).returncode == 0
    with running(store, **SETTINGS):
        until(lambda: {text(place)} <= delivered(receiver))
    assert not delivered(receiver) & {text(message), text(body)}


def spoil_everything_else(transaction: Transaction, id: bytes, lane: bytes) -> None:
    """An attempt, keys, a circuit, its summary, its moment in the agenda, a dead letter, shares, the latest moment."""
    for table in (Table.KEYS, Table.SHIFTS):
        for key, _ in list(transaction.scan(table)):
            transaction.put(table, key, GARBAGE)
    for key, _ in list(prefixed(transaction, Table.MOMENTS, moment_key(Moment.WAKE)[:1])):
        transaction.put(Table.MOMENTS, key[:9] + b"\xff\xfe", b"")
    transaction.put(Table.ATTEMPTS, id + b"\0\1", GARBAGE)
    transaction.put(Table.LANES, lane, GARBAGE)
    transaction.put(Table.SUMMARIES, lane, GARBAGE)
    transaction.put(Table.DEAD, stamp(1, bytes(16)), GARBAGE)
    transaction.put(Table.META, META_LATEST, b"\xff" * 24)


def test_a_broken_record_of_no_message_stops_no_delivery(tmp_path: Path, receiver: Receiver) -> None:
    store = tmp_path / "store"
    ids = filled(store, receiver, 3)
    lane = lane_key(receiver.url.removeprefix("http://"))
    spoil(store, lambda transaction: spoil_everything_else(transaction, ids[0], lane))
    found = fsck(store)
    assert (found.returncode, found.stderr) == (1, "")
    kinds = {json.loads(line)["kind"] for line in found.stdout.splitlines()}
    assert kinds >= {"attempt", "key", "circuit", "summary", "index", "share", "meta"}
    with running(store, **SETTINGS) as gateway:
        again = gateway.post(f"{receiver.url}/hook", LARGE, Idempotency_Key="key 0")
        assert again.status_code == 202
        until(lambda: delivered(receiver) >= {*(text(id) for id in ids), again.json()["id"]})
        assert gateway.call("GET", "/v1/messages").status_code == 200
        until(lambda: gateway.message(text(ids[0]))["state"] == "delivered")
        assert gateway.call("POST", "/v1/dead/drop", {}).status_code == 200
        tables = {"attempts", "keys", "summaries", "moments", "dead", "shifts"}
        until(lambda: tables <= {event.get("table") for event in told(gateway)})
        assert gateway.stop() == 0
        assert "Traceback" not in gateway.log.read_text()


def run_until_it_ends(store: Path) -> "subprocess.CompletedProcess[str]":
    return fork_server.run("run", env=settings(store, **SETTINGS))


def test_a_destroyed_store_file_is_refused(tmp_path: Path, receiver: Receiver) -> None:
    store = tmp_path / "store"
    filled(store, receiver, 3)
    with (store / "data.mdb").open("r+b") as file:
        file.write(b"\x5a" * 2 * PAGE)
    ended = run_until_it_ends(store)
    assert (ended.returncode, ended.stdout) == (3, "")
    assert str(store) in ended.stderr
    assert "Traceback" not in ended.stderr
    checked = fsck(store)
    assert checked.returncode == 3
    assert str(store) in checked.stderr


def pages_with(data: bytes, text: bytes) -> list[int]:
    return [page for page in range(len(data) // PAGE) if text in data[page * PAGE : (page + 1) * PAGE]]


def without(data: bytes, page: int) -> bytes:
    return data[: page * PAGE] + bytes(PAGE) + data[(page + 1) * PAGE :]


def is_readable(store: Path, data: bytes, ids: list[bytes]) -> bool:
    """Whether the messages can be read of a store that begins well: False for a page of theirs, but the last one."""
    (store / "data.mdb").write_bytes(data)
    try:
        engine = LmdbEngine(store, 64 << 20)
    except StoreUnusable:
        return True
    try:
        last_time(engine)
    except StoreUnusable:
        engine.close()
        return True
    try:
        with engine.read() as transaction:
            return all(transaction.get(Table.MESSAGES, id) for id in ids)
    except StoreUnusable:
        return False
    finally:
        engine.close()


def test_a_page_of_zeros_ends_the_process_and_fsck_names_the_table(tmp_path: Path, receiver: Receiver) -> None:
    store = tmp_path / "store"
    ids = filled(store, receiver, 30)
    whole = (store / "data.mdb").read_bytes()
    page = next(page for page in pages_with(whole, MARKER) if not is_readable(store, without(whole, page), ids))
    (store / "data.mdb").write_bytes(without(whole, page))
    ended = run_until_it_ends(store)
    # LMDB believes its pages. Once in a hundred times what it makes of zeros is an address of nowhere.
    assert ended.returncode in (4, -signal.SIGSEGV)
    assert "Traceback" not in ended.stderr
    assert ended.returncode != 4 or "store_failed" in ended.stderr
    checked = fsck(store)
    assert checked.returncode == 3
    assert "messages" in checked.stderr
    assert "Traceback" not in checked.stderr
