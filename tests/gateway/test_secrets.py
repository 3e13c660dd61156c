"""Private data stays private: modes of files whatever the umask, and secrets wherever something is shown."""

import json
import stat
import subprocess
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, unquote

import httpx
import pytest

from holdfast.store.embedded.lmdb import LmdbEngine
from holdfast.store.embedded.tables import Table
from holdfast.store.records import lane_key
from tests.gateway.hostile import Caller, raw_receiver, say
from tests.support import fork_server
from tests.support.harness import HOLDFAST, PATIENCE, PLAIN, Gateway, running, settings, until
from tests.support.ports import refusing_port

TOKEN = "secret-of-the-token-file"
IN_THE_TARGET = {
    "path": "secret-of-the-path",
    "query": "secret-of-the-query",
}
IN_THE_HEADERS = {
    "authorization": "Bearer secret-of-the-authorization",
    "cookie": "sid=secret-of-the-cookie; theme=dark",
    "x-api-key": "secret-of-the-api-key",
    "proxy-authorization": "Bearer secret-of-the-proxy",
    "x-hub-signature": "sha256=secret-of-the-signature",
}
BODY = b'{"card": "secret-of-the-body"}'
SECRETS = ("path", "query", "authorization", "cookie", "api-key", "proxy", "signature", "body", "token-file")


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def holdfast(*arguments: str, store: Path, **keys: object) -> "subprocess.CompletedProcess[str]":
    done = fork_server.run(*arguments, env=settings(store, **keys))
    assert done.returncode == 0, done.stderr
    return done


@pytest.fixture(params=["000", "077", "022"])
def umask(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Of every process that the test starts from here on."""
    script = tmp_path / "with-umask"
    script.write_text(f'#!/bin/sh\numask {request.param}\nexec "{HOLDFAST}" "$@"\n')
    script.chmod(0o700)
    with fork_server.executing(str(script)):
        yield str(request.param)


@pytest.mark.usefixtures("umask")
def test_only_the_owner_can_read_the_files(tmp_path: Path) -> None:
    store = tmp_path / "deep" / "store"
    dead, whole = tmp_path / "dead.jsonl", tmp_path / "whole.jsonl"
    for there_before in (dead, whole):
        there_before.write_text("")
        there_before.chmod(0o644)
    store.parent.mkdir()
    with running(store, retry__max_retries=0) as gateway:
        id = gateway.post("http://127.0.0.1:9/hook", BODY).json()["id"]
        until(lambda: gateway.message(id)["state"] == "dead")
        assert mode(store) == 0o700
        assert mode(gateway.control) == 0o600
        assert {path.name: mode(path) for path in store.iterdir()} == {path.name: 0o600 for path in store.iterdir()}
        holdfast("dead", "export", str(dead), store=store)
        assert gateway.stop() == 0
    holdfast("export", str(whole), store=store)
    for export in (dead, whole):
        assert mode(export) == 0o600
        assert "secret-of-the-body" in export.read_text()
    assert {mode(path) for path in store.iterdir()} == {0o600}


@pytest.mark.parametrize(("holds", "wanted"), [(None, 0o700), ("lost+found", 0o700), ("of-others", 0o755)])
def test_a_folder_made_for_the_store_is_closed_to_others(tmp_path: Path, holds: str | None, wanted: int) -> None:
    """Unless there is something else in it: a path given by mistake must not lock others out of it."""
    store = tmp_path / "store"
    store.mkdir()
    if holds:
        (store / holds).mkdir()
    store.chmod(0o755)
    with running(store) as gateway:
        assert mode(store) == wanted
        assert mode(store / "data.mdb") == 0o600
        assert of_the_folder(gateway) == []


def of_the_folder(gateway: Gateway) -> list[tuple[str, str]]:
    events = [event for event in gateway.events() if event["event"].startswith("folder_")]
    assert all(event["path"] == str(gateway.control.parent) for event in events)
    return [(event["event"], event["mode"]) for event in events]


def test_a_store_that_was_opened_to_others_is_closed_again_and_logged(tmp_path: Path) -> None:
    store = tmp_path / "store"
    with running(store) as gateway:
        assert gateway.stop() == 0
    store.chmod(0o777)
    with running(store) as gateway:
        assert mode(store) == 0o700
        assert of_the_folder(gateway) == [("folder_closed", "0777")]


@pytest.mark.parametrize("shared", [False, True], ids=["embedded", "spool"])
def test_a_file_that_another_user_prepared_is_not_written_to(
    tmp_path: Path, shared: bool, request: pytest.FixtureRequest
) -> None:
    keys = {"store__url": request.getfixturevalue("database"), "store__spool": "true"} if shared else {}
    store, precious = tmp_path / "store", tmp_path / "precious"
    precious.write_text("precious")
    store.mkdir()
    (store / "lock.mdb").symlink_to(precious)
    done = fork_server.run("run", env=settings(store, **keys))
    assert done.returncode == 3
    assert done.stderr.splitlines()[-1].startswith(f"holdfast: {store}/lock.mdb is a link; ")
    assert precious.read_text() == "precious"


# -- configs ----------------------------------------------------------------------------------------------------------

BAD_CONFIG = """
[listen]
probe = "c4n4ry"
[store]
url = "postgresql://user:c4n4ry@host/a b"
[delivery]
proxy = "http://c4n4ry:c4n4ry"
[ingest]
hosts = ["fine", "c4n4ry c4n4ry"]
[routes.a]
url = "https://user:c4n4ry@host/c4n4ry"
sign = "whsec_c4n4ry"
[routes.b]
url = "https://host"
sign = { secret_env = "c4n4ry-c4n4ry" }
headers = { "authorization: c4n4ry" = "c4n4ry" }
"""
LOST_FILES = """
[ingest]
token_file = "c4n4ry"
[delivery]
ca_file = "c4n4ry/c4n4ry"
proxy = "http://127.0.0.1:9"
proxy_credentials_file = "user:c4n4ry"
[routes.a]
url = "https://host"
client_cert_file = "c4n4ry"
sign = { secret_file = "whsec_c4n4ry" }
[routes.b]
url = "https://host"
sign = { secret_env = "whsec_c4n4ry" }
"""


@pytest.mark.parametrize(("text", "faults"), [(BAD_CONFIG, 8), (LOST_FILES, 6)], ids=["bad values", "lost files"])
def test_faults_of_a_config_repeat_no_secret(tmp_path: Path, text: str, faults: int) -> None:
    config = tmp_path / "holdfast.toml"
    config.write_text("")
    with running(tmp_path / "store", config) as gateway:
        config.write_text(text)
        env = settings(tmp_path / "other")
        done = [
            fork_server.run(*words, "--config", str(config), env=env, cwd=tmp_path)
            for words in (["check"], ["check", "--json"], ["run"])
        ]
        assert [each.returncode for each in done] == [2, 2, 2]
        assert len(done[0].stderr.splitlines()) == faults
        refused = gateway.call("POST", "/v1/reload")
        assert (refused.status_code, len(refused.json()["faults"])) == (422, faults)
        said = "".join([*(each.stdout + each.stderr for each in done), refused.text, gateway.log.read_text()])
    assert "reload_refused" in said
    assert "c4n4ry" not in said


# -- showing ----------------------------------------------------------------------------------------------------------


def echoing(caller: Caller) -> None:
    """Refuses with the whole request in the answer, as careless receivers do."""
    while (request := caller.request())[0]:
        said = b"refused: " + b"".join(request)
        caller.say(b"HTTP/1.1 422 No\r\ncontent-length: %d\r\n\r\n" % len(said) + said)


@dataclass
class World:
    """A gateway whose one message failed, with everything that it said about it while it lived."""

    gateway: Gateway
    id: str
    host: str
    events: str


@pytest.fixture(scope="module", params=["host", "url"])
def world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Under each kind of circuit key: by URL, the path is in the key."""
    folder = tmp_path_factory.mktemp("secrecy")
    (folder / "token").write_text(TOKEN)
    keys = {"ingest__token_file": folder / "token", "circuit__scope": request.param, "log__level": "debug"}
    keys |= {"retry__max_retries": 0, "circuit__disable_after": 1}
    with running(folder / "store", **keys) as gateway, raw_receiver(echoing) as receiver:
        heard: list[str] = []
        listening = threading.Thread(target=_listen, args=(gateway, heard), daemon=True)
        listening.start()
        until(lambda: heard)
        target = f"{receiver.url}/hooks/{IN_THE_TARGET['path']}?key={IN_THE_TARGET['query']}"
        named = {"holdfast-token": TOKEN, **IN_THE_HEADERS}
        answer = httpx.post(f"http://{gateway.ingest}/{target}", content=BODY, headers=named, **PLAIN)
        id = answer.json()["id"]
        until(lambda: gateway.message(id)["state"] == "dead")
        until(lambda: any('"message_dead"' in line for line in heard))
        yield World(gateway, id, f"127.0.0.1:{receiver.port}", "\n".join(heard))


def _listen(gateway: Gateway, heard: list[str]) -> None:
    """The live events, from the first of which on the test begins: a refusal of its own."""
    transport = httpx.HTTPTransport(uds=str(gateway.control), verify=False)
    with suppress(httpx.HTTPError), httpx.Client(transport=transport, timeout=PATIENCE) as client:
        with client.stream("GET", "http://holdfast/v1/events") as stream:
            heard.append("listening")
            for line in stream.iter_lines():
                heard.append(line)


def leaked(text: str) -> list[str]:
    return [name for name in SECRETS if f"secret-of-the-{name}" in text]


@pytest.mark.parametrize(
    "path", ["/status", "/circuits", "/messages/{id}", "/metrics", "/", "/page.json", "/healthz", "/readyz"]
)
def test_the_status_listener_shows_no_secret(world: World, path: str) -> None:
    answer = world.gateway.get(path.format(id=world.id))
    assert answer.status_code == 200
    assert leaked(answer.text) == []


def test_each_circuit_by_its_shown_name_hides_the_path(world: World) -> None:
    circuits = world.gateway.get("/circuits").json()["circuits"]
    assert [circuit["state"] for circuit in circuits] == ["disabled"]
    for circuit in circuits:
        answer = world.gateway.get(f"/circuits/{quote(circuit['host'], safe='')}")
        assert answer.status_code == 200
        assert leaked(answer.text) == []


@pytest.fixture(scope="module")
def by_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Gateway, str, int]]:
    """A gateway with three disabled circuits on one host, each of a URL whose path is a secret; the address of its
    probe listener, and the host's port.
    """
    probe = f"127.0.0.1:{refusing_port()}"
    store = tmp_path_factory.mktemp("by-url") / "store"
    keys = {"circuit__scope": "url", "circuit__disable_after": 1, "retry__max_retries": 0, "listen__probe": probe}
    with running(store, **keys) as gateway, raw_receiver(echoing) as receiver:
        for number in range(3):
            id = gateway.post(f"{receiver.url}/hooks/{IN_THE_TARGET['path']}-{number}").json()["id"]
            until(lambda id=id: gateway.message(id)["state"] == "dead")
        yield gateway, probe, receiver.port


def test_no_path_of_either_listener_shows_a_circuits_url(by_url: tuple[Gateway, str, int]) -> None:
    gateway, probe, port = by_url
    host = f"127.0.0.1:{port}"
    masked = [quote(each["host"], safe="") for each in gateway.get("/circuits").json()["circuits"]]
    pieces = [quote(f"{start}{host}/{end}", safe="") for start in ("", "http://") for end in ("", "hooks", "hooks/")]
    paths = ["/", "/page.json", "/status", "/metrics", "/healthz", "/readyz", "/readyz?strict", "/circuits?limit=1"]
    paths += [f"/circuits{query}" for query in ("", "?state=disabled", f"?limit=1&after={masked[0]}", "?after=x")]
    paths += [f"/circuits/{name}" for name in ("127.0.0.1", host, "nowhere", *masked, *pieces)]
    said = {path: gateway.get(path) for path in paths}
    said |= {f"probe {path}": httpx.get(f"http://{probe}{path}", **PLAIN) for path in paths}
    assert {path for path, answer in said.items() if leaked(answer.text)} == set()
    ambiguous = said[f"/circuits/{host}"]
    assert (ambiguous.status_code, ambiguous.json()["candidates"]) == (404, [unquote(each) for each in masked])
    assert {said[f"/circuits/{piece}"].status_code for piece in pieces} == {404}
    assert leaked(gateway.log.read_text()) == []


def test_circuits_are_paged_and_acted_upon_by_their_shown_names(by_url: tuple[Gateway, str, int]) -> None:
    gateway, _, _ = by_url
    seen, page = [], gateway.get("/circuits?limit=1").json()
    while page["next"] is not None:
        seen += page["circuits"]
        page = gateway.get(f"/circuits?limit=1&after={quote(page['next'], safe='')}").json()
    names = [each["host"] for each in [*seen, *page["circuits"]]]
    assert len(set(names)) == 3
    for name in names:
        assert gateway.get(f"/circuits/{quote(name, safe='')}").json()["host"] == name
    froze = gateway.call("POST", f"/v1/circuits/{quote(names[1], safe='')}/freeze").json()
    assert froze["changed"] and froze["circuit"]["host"].endswith("secret-of-the-path-1")
    assert [each["host"] for each in gateway.get("/circuits?state=frozen").json()["circuits"]] == [names[1]]


def test_a_broken_circuit_is_logged_without_its_url(tmp_path: Path) -> None:
    store = tmp_path / "store"
    target = f"http://127.0.0.1:9/{IN_THE_TARGET['path']}"
    with running(store, circuit__scope="url", store__max_size="64MiB") as gateway:
        id = gateway.post(target).json()["id"]
        until(lambda: gateway.message(id)["attempts"])
        gateway.stop()
    engine = LmdbEngine(store, 64 << 20)
    with (writing := engine.write()) as transaction:
        transaction.put(Table.SUMMARIES, lane_key(target), b"garbage")
        writing.commit()
    engine.close()
    with running(store, circuit__scope="url", store__max_size="64MiB") as gateway:
        gateway.post(target)
        until(lambda: [event for event in gateway.events() if event["event"] == "record_broken"])
        said = gateway.log.read_text()
    assert "http://127.0.0.1:9/#" in said
    assert not leaked(said) and IN_THE_TARGET["path"].encode().hex() not in said


def test_the_log_and_the_live_events_show_no_secret(world: World) -> None:
    assert "attempt_failed" in world.events and "attempt_failed" in world.gateway.log.read_text()
    assert "circuit_changed" in world.events
    assert leaked(world.events) == []
    assert leaked(world.gateway.log.read_text()) == []


def test_an_answer_that_quotes_the_request_is_kept_without_its_secrets(world: World) -> None:
    (attempt,) = world.gateway.message(world.id)["attempts"]
    assert attempt["status"] == 422
    assert attempt["answer"].startswith("refused: POST ")
    assert "[redacted]" in attempt["answer"]


@pytest.mark.parametrize("path", ["/v1/status", "/v1/circuits", "/v1/messages/{id}", "/v1/messages?state=dead"])
def test_the_control_socket_shows_the_target_and_nothing_else(world: World, path: str) -> None:
    answer = world.gateway.call("GET", path.format(id=world.id))
    assert answer.status_code == 200
    assert set(leaked(answer.text)) <= {"path", "query"}


def test_the_commands_show_the_target_and_nothing_else(world: World) -> None:
    store = world.gateway.control.parent
    for command in (["messages", "show", world.id], ["why", world.id], ["dead", "list"], ["circuits"], ["status"]):
        done = holdfast(*command, store=store)
        assert set(leaked(done.stdout + done.stderr)) <= {"path", "query"}, command


def test_an_export_carries_what_was_sent_and_never_the_token(world: World, tmp_path: Path) -> None:
    file = tmp_path / "dead.jsonl"
    holdfast("dead", "export", str(file), store=world.gateway.control.parent)
    (line,) = file.read_text().splitlines()
    assert set(leaked(line)) == set(SECRETS) - {"proxy", "token-file"}
    assert json.loads(line)["id"] == world.id


@pytest.mark.parametrize(
    ("target", "fields"),
    [
        ("/ftp://127.0.0.1/{path}?{query}", []),
        ("/http://127.0.0.1:0/{path}?{query}", []),
        ("/http://169.254.169.254/{path}?{query}", []),
        ("/http://u:{path}@127.0.0.1/{query}", []),
        ("/nowhere/{path}?{query}", []),
        ("/to/none/{path}?{query}", []),
        ("/http://127.0.0.1:9/{path}?{query}", ["Holdfast-Delay: soon"]),
        ("/http://127.0.0.1:9/{path}?{query}", ["Holdfast-Target: http://127.0.0.1:9/else"]),
        ("/http://127.0.0.1:9/{path}?{query}", ["Origin: http://evil.test"]),
        ("/http://127.0.0.1:9/{path}?{query}", ["X : y"]),
        ("/http://127.0.0.1:9/{path}?{query}", ["Holdfast-Token: wrong"]),
    ],
)
def test_a_refusal_repeats_no_secret(world: World, target: str, fields: list[str]) -> None:
    """It goes back to the app, whose own log it ends up in."""
    gateway = world.gateway
    given = [f"{name}: {value}" for name, value in IN_THE_HEADERS.items()]
    token = [] if any("Token" in field for field in fields) else [f"Holdfast-Token: {TOKEN}"]
    lines = [
        f"POST {target.format(**IN_THE_TARGET)} HTTP/1.1", f"Host: {gateway.ingest}", *token, *given, *fields,
        "Connection: close", f"Content-Length: {len(BODY)}", "", "",
    ]  # fmt: skip
    said = say(gateway.ingest, "\r\n".join(lines).encode() + BODY).decode()
    assert "application/problem+json" in said
    assert leaked(said) == []
    assert leaked(gateway.log.read_text()) == []
