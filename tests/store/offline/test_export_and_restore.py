"""Export and import give the same store, whatever state its messages are in."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pytest import MonkeyPatch, TempPathFactory, fixture, mark, raises

from holdfast.core.errors import StoreFull
from holdfast.core.message import id_text
from holdfast.store import maintenance
from holdfast.store.embedded import tables
from holdfast.store.embedded.lmdb import LmdbEngine
from holdfast.store.embedded.tables import Table
from holdfast.store.maintenance import Finding, Imported, NotAnExport, check_header
from holdfast.store.offline.offline_store import OfflineStore
from holdfast.store.port import Accept, Duplicate
from tests.contract.builders import HOUR, NOW, RULES, dump, idempotency
from tests.contract.consistency import check as assert_consistent
from tests.contract.consistency import check_shares as assert_shares
from tests.store.populated import BINARY, OF_WRONG_TYPES, TEXT, Populated, build, populate, put
from tests.support.repetitions import amount

NOT_THE_SAME = {Table.FINISHED, Table.META, Table.SHARES, Table.SHIFTS}
"""Delivered records are listed by the groups that they came in; the latest moment is this machine's."""


@fixture(scope="module")
def original(tmp_path_factory: TempPathFactory) -> Populated:
    return build(tmp_path_factory.mktemp("original") / "store")


@fixture(scope="module")
def exported(original: Populated) -> list[bytes]:
    return export(original)


@fixture
def empty(tmp_path: Path) -> Populated:
    return Populated(tmp_path / "copy")


def export(store: Populated) -> list[bytes]:
    left_out: list[Finding] = []
    with store.offline() as offline:
        lines = list(offline.export(left_out.append))
    assert left_out == []
    return lines


def take(store: Populated, lines: list[bytes]) -> tuple[Imported, list[tuple[int, str]]]:
    bad: list[tuple[int, str]] = []
    check_header(lines[0])
    with store.offline() as offline:
        done = offline.take(lines[1:], lambda number, what: bad.append((number, what)))
        assert list(offline.check()) == []
    return done, bad


def contents(store: Populated) -> dict[Table, list[tuple[bytes, bytes]]]:
    engine = store.open()
    try:
        return dump(engine)
    finally:
        engine.close()


def line_of(lines: list[bytes], store: Populated, name: str) -> dict[str, Any]:
    [found] = [line for line in map(json.loads, lines) if line.get("id") == id_text(store[name]) and "lane" in line]
    return found


@mark.parametrize("killed", [True, False])
@mark.parametrize("batch", [1, 4, 500])
def test_export_import_export_gives_the_same_lines(
    tmp_path: Path, empty: Populated, monkeypatch: MonkeyPatch, batch: int, killed: bool
) -> None:
    original = build(tmp_path / "store", killed=killed)
    monkeypatch.setattr(tables, "BATCH", batch)
    monkeypatch.setattr(maintenance, "BATCH", batch)
    lines = export(original)
    done, bad = take(empty, lines)
    assert (done.complete, bad, done.skipped.total()) == (True, [], 0)
    assert export(empty) == lines
    before, after = contents(original), contents(empty)
    same = [table for table in Table if table not in NOT_THE_SAME]
    assert {table: after[table] for table in same} == {table: before[table] for table in same}
    assert_consistent(after, RULES)
    assert_shares(after)


def test_an_export_has_everything_and_redacts_nothing(original: Populated, exported: list[bytes]) -> None:
    assert json.loads(exported[0]) == {"format": "holdfast-export", "version": 2}
    assert json.loads(exported[-1]) == {"kind": "end", "lines": len(exported) - 1}
    states = {name: line_of(exported, original, name).get("place", {}).get("state") for name in original.by_name}
    assert states == {
        "delivered": None,
        "delivered late": None,
        "exhausted": "dead",
        "expired": "dead",
        "replayed": "waiting",
        "waiting": "waiting",
        "waiting behind": "waiting",
        "delayed": "retry",
        "retrying": "retry",
        "pushed": "retry",
        "empty": "waiting",
        "held": "waiting",
        "probed": "waiting",
        "frozen": "waiting",
        "frozen retry": "retry",
        "active": "active",
        "active, tried": "active",
    }
    secret = line_of(exported, original, "empty")
    assert secret["headers"] == [["authorization", "Bearer s3cret"], ["x-bin", "\xff\x00"]]
    assert line_of(exported, original, "waiting")["path"].endswith("?secret=1")


def test_bodies_are_text_where_they_can_be(original: Populated, exported: list[bytes]) -> None:
    assert line_of(exported, original, "waiting")["body"] == TEXT.decode()
    assert set(line_of(exported, original, "held")["body"]) == {"base64"}
    assert line_of(exported, original, "empty")["body"] == ""
    assert line_of(exported, original, "delivered late")["size"] == len(BINARY)
    [attempt] = line_of(exported, original, "frozen retry")["attempts"]
    assert (attempt["answer"], attempt["duration"]) == ({"base64": "//4="}, 1.234)


def test_places_say_what_a_message_waits_for(original: Populated, exported: list[bytes]) -> None:
    place = line_of(exported, original, "delayed")["place"]
    assert (place["due"], place["retry"], place["held"]) == ("2024-10-04T11:00:00.008Z", 0, True)
    dead = line_of(exported, original, "expired")["place"]
    assert (dead["reason"], dead["finished"], dead["due"]) == ("expired", "2024-10-04T11:00:00.000Z", None)
    retry = line_of(exported, original, "retrying")["place"]
    assert (retry["due"], retry["retry"], retry["attempts"], retry["held"]) == ("2024-10-04T10:07:00.000Z", 1, 1, False)


def test_a_circuit_keeps_all_its_counters(exported: list[bytes]) -> None:
    [line] = [line for line in map(json.loads, exported) if line.get("key") == "down:443"]
    assert (line["state"], line["reason"], line["consecutive_failures"]) == ("disabled", "failure_rate", 123)
    assert line["window"] == [[333, 5, 4], [334, 100, 99]]
    assert line["hold_until"] == "2024-10-04T10:03:00.000Z"


def test_unreadable_records_are_left_out_and_reported(tmp_path: Path) -> None:
    store = build(tmp_path / "store")
    whole = export(store)
    put(store, Table.MESSAGES, store["waiting"], b"\xc1")
    put(store, Table.PLACES, store["retrying"], b"\xc1")
    put(store, Table.MESSAGES, store["empty"], OF_WRONG_TYPES)
    left_out: list[Finding] = []
    with store.offline() as offline:
        lines = list(offline.export(left_out.append))
    assert {(each.kind, each.id) for each in left_out} == {
        ("message", id_text(store[name])) for name in ("waiting", "retrying", "empty")
    }
    assert len(lines) == len(whole) - 3
    assert json.loads(lines[-1])["lines"] == len(lines) - 1


def test_repeating_an_import_skips_what_is_there(empty: Populated, exported: list[bytes]) -> None:
    first, _ = take(empty, exported)
    before = contents(empty)
    again, bad = take(empty, exported)
    assert (again.added.total(), again.skipped, bad) == (0, first.added, [])
    assert contents(empty) == before


def test_an_interrupted_import_is_completed_by_repeating_it(
    empty: Populated, exported: list[bytes], monkeypatch: MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance, "BATCH", 3)

    def torn():
        yield from exported[1:20]
        raise KeyboardInterrupt

    with empty.offline() as offline, raises(KeyboardInterrupt):
        offline.take(torn(), lambda number, what: None)
    some = contents(empty)[Table.MESSAGES]
    assert 0 < len(some) < 15
    done, _ = take(empty, exported)
    assert done.skipped["message"] == len(some)
    assert export(empty) == exported


def test_a_message_that_was_delivered_meanwhile_does_not_come_back(
    original: Populated, empty: Populated, exported: list[bytes]
) -> None:
    kept = [line for line in exported if b'"kind": "message"' not in line]
    take(empty, kept)
    waiting = {**line_of(exported, original, "waiting"), "id": id_text(original["delivered"])}
    done, _ = take(empty, [exported[0], json.dumps(waiting).encode()])
    assert (done.added.total(), done.skipped) == (0, {"message": 1})


def test_an_existing_circuit_stays_as_it_is(tmp_path: Path, exported: list[bytes]) -> None:
    async def accept(desk: Any) -> None:
        desk.clock.at += HOUR
        await desk.accept("down:443")

    store = populate(tmp_path / "copy", accept)
    before = dict(contents(store)[Table.LANES])[b"down:443"]
    done, _ = take(store, exported)
    assert done.skipped == {"circuit": 1}
    assert done.added["message"] == 15
    assert dict(contents(store)[Table.LANES])[b"down:443"] == before


def test_an_imported_key_still_answers(empty: Populated, original: Populated, exported: list[bytes]) -> None:
    take(empty, exported)

    async def repeat(desk: Any) -> None:
        desk.clock.at = NOW + HOUR
        result = await desk.ledger.perform(Accept(desk.message("done:443"), idempotency("delivered")))
        assert result == Duplicate(original["delivered"])

    populate(empty.folder, repeat)


def test_ids_go_on_after_those_that_were_imported(empty: Populated, exported: list[bytes]) -> None:
    take(empty, exported)
    last = contents(empty)[Table.MESSAGES][-1][0]

    async def mint(desk: Any) -> None:
        assert desk.ledger.mint(0) > last

    populate(empty.folder, mint)


@mark.parametrize(
    "header",
    [b"", b"{}", b"not json", b'{"format": "other", "version": 1}', b'{"format": "holdfast-export"}', b"[]", b"1"],
)
def test_a_file_that_is_no_export_is_refused(header: bytes) -> None:
    with raises(NotAnExport, match="no export"):
        check_header(header)


def test_a_newer_version_is_refused() -> None:
    with raises(NotAnExport, match="version 3"):
        check_header(b'{"format": "holdfast-export", "version": 3}')


Change = Callable[[dict[str, Any]], object]


@mark.parametrize(
    "change",
    [
        lambda line: line.pop("lane"),
        lambda line: line.update(kind="other"),
        lambda line: line.update(lane=5),
        lambda line: line.update(lane=""),
        lambda line: line.update(lane="x" * 401),
        lambda line: line.update(host="x" * 600),
        lambda line: line.update(id="msg_1"),
        lambda line: line.update(accepted_at="yesterday"),
        lambda line: line.update(born="1969-12-31T23:59:59.000Z"),
        lambda line: line.update(path="/€"),
        lambda line: line.update(headers=[["only a name"]]),
        lambda line: line.update(body=None),
        lambda line: line.update(body={"base64": "%%%"}),
        lambda line: line.update(attempts=None),
        lambda line: line["place"].update(state="elsewhere"),
        lambda line: line["place"].update(due=None),
        lambda line: line["place"].update(retry=70_000),
        lambda line: line["place"].update(held="no"),
        lambda line: line["attempts"][0].update(number=1 << 63),
        lambda line: line["attempts"][0].update(duration=float("nan")),
        lambda line: line["attempts"][0].update(error="unheard of"),
        lambda line: line["attempts"][0].update(detail="\ud800"),
    ],
)
def test_nothing_of_a_bad_line_is_stored_and_the_others_are(
    original: Populated, empty: Populated, exported: list[bytes], change: Change
) -> None:
    line = line_of(exported, original, "retrying")
    change(line)
    number = next(number for number, text in enumerate(exported) if id_text(original["retrying"]).encode() in text)
    done, bad = take(empty, [*exported[:number], json.dumps(line).encode(), *exported[number + 1 :]])
    assert [at for at, _ in bad] == [number + 1]
    assert bad[0][1]
    assert (done.bad, done.added["message"], done.complete) == (1, 14, True)
    after = contents(empty)
    assert not any(original["retrying"] in key + value for rows in after.values() for key, value in rows)


@mark.parametrize(
    ("name", "change"),
    [
        ("delivered", {"finished_at": "1969-12-31T23:59:59.000Z"}),
        ("delivered", {"size": -1}),
        ("delivered", {"success": None}),
        ("exhausted", {"place": {}}),
    ],
)
def test_finished_messages_have_bad_lines_too(
    original: Populated, empty: Populated, exported: list[bytes], name: str, change: dict[str, Any]
) -> None:
    line = {**line_of(exported, original, name), **change}
    done, bad = take(empty, [exported[0], json.dumps(line).encode()])
    assert (done.added.total(), [number for number, _ in bad]) == (0, [2])


@mark.parametrize("text", [b"\n", b"garbage\n", b"[1]\n", b"null\n", b"[" * 100_000, b'{"kind": []}', b"\xff\n"])
def test_a_bad_line_is_reported_with_its_number(empty: Populated, exported: list[bytes], text: bytes) -> None:
    done, bad = take(empty, [*exported[:5], text, *exported[5:]])
    assert ([number for number, _ in bad], done.added["message"]) == ([6], 15)


def test_attempts_are_never_without_a_place(original: Populated, empty: Populated, exported: list[bytes]) -> None:
    line = line_of(exported, original, "active, tried")
    line["place"]["attempts"] = 0
    take(empty, [exported[0], json.dumps(line).encode()])


def test_a_file_that_was_cut_off_is_reported(empty: Populated, exported: list[bytes]) -> None:
    assert not take(empty, exported[:-1])[0].complete
    assert not take(empty, [*exported[:3], *exported[4:]])[0].complete
    assert take(empty, exported)[0].complete


def test_a_store_that_is_too_small_says_so_and_takes_the_rest_later(
    empty: Populated, original: Populated, exported: list[bytes]
) -> None:
    template = line_of(exported, original, "held")
    lines = [
        json.dumps({**template, "id": f"msg_{number:032x}", "body": "x" * 900_000}).encode() for number in range(1, 30)
    ]
    small = OfflineStore(LmdbEngine(empty.folder, 8 << 20), RULES)
    with small, raises(StoreFull, match="max_size"):
        small.take(lines, lambda number, what: None)
    some = len(contents(empty)[Table.MESSAGES])
    assert 0 < some < 29
    done, bad = take(empty, [exported[0], *lines])
    assert (done.skipped["message"], done.added["message"], bad) == (some, 29 - some, [])


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)


@settings(
    max_examples=amount(30, 200), suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_whatever_a_line_says_the_store_stays_consistent(
    exported: list[bytes], tmp_path_factory: TempPathFactory, data: st.DataObject
) -> None:
    line = json.loads(data.draw(st.sampled_from(exported[1:-1])))
    target = line
    while True:
        name = data.draw(st.sampled_from(sorted(target)))
        inner = target[name][0] if isinstance(target[name], list) and target[name] else target[name]
        if not isinstance(inner, dict) or data.draw(st.booleans()):
            break
        target = inner
    target[name] = data.draw(ANYTHING)
    store = Populated(tmp_path_factory.mktemp("any") / "store")
    done, bad = take(store, [exported[0], json.dumps(line).encode()])
    assert done.added.total() + len(bad) == 1 or line["kind"] == "end"
    export(store)
