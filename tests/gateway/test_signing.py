"""Signed routes of the real gateway, verified as a receiver would."""

import os
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
import pytest
from standardwebhooks import Webhook, WebhookVerificationError

from tests.support import fork_server
from tests.support.harness import PLAIN, Gateway, Received, Receiver, running, settings, until

OLD = "whsec_" + b64encode(b"old " * 8).decode()
NEW = "whsec_" + b64encode(b"new " * 8).decode()
BODY = b'{"paid": true}'


@contextmanager
def signing(tmp_path: Path, receiver: Receiver, **keys: object) -> Iterator[tuple[Gateway, Path]]:
    """A gateway with the signed route `billing`, and the file with its secret."""
    secret, config = tmp_path / "secret", tmp_path / "holdfast.toml"
    secret.write_text(OLD)
    config.write_text(f'[routes.billing]\nurl = "{receiver.url}/in"\nsign = {{ secret_file = "{secret}" }}\n')
    with running(tmp_path / "store", config=config, **keys) as gateway:
        yield gateway, secret


def send(gateway: Gateway, **headers: str) -> str:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    answer = httpx.post(f"http://{gateway.ingest}/to/billing", content=BODY, headers=named, **PLAIN)
    assert answer.status_code == 202, answer.text
    return str(answer.json()["id"])


def verify(secret: str, request: Received) -> None:
    Webhook(secret).verify(request.body, dict(request.headers))


def test_a_receiver_verifies_signatures_and_a_rotation_needs_no_restart(tmp_path: Path, receiver: Receiver) -> None:
    with signing(tmp_path, receiver) as (gateway, secret):
        id = send(gateway)
        first = receiver.wait_for_one()
        assert first.id == id
        verify(OLD, first)
        replace_as_kubernetes_does(secret, f"{OLD}\n{NEW}\n")
        send(gateway)
        both = receiver.wait_for(lambda requests: len(requests) == 2)[1]
        verify(OLD, both)
        verify(NEW, both)
        replace_as_kubernetes_does(secret, NEW)
        send(gateway)
        last = receiver.wait_for(lambda requests: len(requests) == 3)[2]
        verify(NEW, last)
        with pytest.raises(WebhookVerificationError):
            verify(OLD, last)


def replace_as_kubernetes_does(secret: Path, text: str) -> None:
    """By turning a link to another file, which is whole by then."""
    whole, link = secret.with_name(f"..{len(text)}"), secret.with_name("..data")
    whole.write_text(text)
    link.symlink_to(whole.name)
    link.rename(secret)


def test_a_rewritten_secret_is_used_only_when_it_is_complete(tmp_path: Path, receiver: Receiver) -> None:
    with signing(tmp_path, receiver) as (gateway, secret):
        for half in ("", NEW[:20], NEW):
            secret.write_text(half)
            send(gateway)
        verify(OLD, receiver.wait_for(lambda requests: len(requests) == 3)[0])

        def is_new() -> bool:
            count = len(receiver.requests) + 1
            send(gateway)
            latest = receiver.wait_for(lambda requests: len(requests) >= count)[-1]
            with suppress(WebhookVerificationError):
                verify(NEW, latest)
                return True
            verify(OLD, latest)
            return False

        until(is_new)
        for request in receiver.requests[:3]:
            verify(OLD, request)


def test_every_attempt_has_its_own_timestamp_and_the_same_id(tmp_path: Path, receiver: Receiver) -> None:
    receiver.answer = lambda request: 500 if len(receiver.requests) < 3 else 200
    with signing(tmp_path, receiver, retry__base="600ms") as (gateway, _):
        id = send(gateway)
        requests = receiver.wait_for(lambda requests: len(requests) == 4)
        assert {request.id for request in requests} == {id}
        for request in requests:
            verify(OLD, request)
        times = [int(request.headers["webhook-timestamp"]) for request in requests]
        assert times == sorted(times)
        assert times[-1] > times[0]


def test_the_apps_own_id_is_signed_and_its_own_signature_is_not_sent(tmp_path: Path, receiver: Receiver) -> None:
    with signing(tmp_path, receiver) as (gateway, _):
        send(gateway, webhook_id="order-7", webhook_timestamp="1", webhook_signature="v1,forged")
        request = receiver.wait_for_one()
        assert request.id == "order-7"
        assert "forged" not in request.headers["webhook-signature"]
        verify(OLD, request)


def test_the_same_host_by_prefix_is_not_signed(tmp_path: Path, receiver: Receiver) -> None:
    with signing(tmp_path, receiver) as (gateway, _):
        gateway.post(f"{receiver.url}/in")
        assert "webhook-signature" not in receiver.wait_for_one().headers


def test_a_deleted_secret_is_a_local_failure_and_nothing_is_sent(tmp_path: Path, receiver: Receiver) -> None:
    with signing(tmp_path, receiver, retry__base="300ms") as (gateway, secret):
        secret.unlink()
        id = send(gateway)
        attempt = until(lambda: gateway.message(id)["attempts"])[0]
        assert (attempt["error"], attempt["fault"], attempt["status"]) == ("secret", "here", None)
        assert "can't be read: No such file or directory" in attempt["detail"]
        assert receiver.requests == []
        secret.write_text(NEW)
        verify(NEW, receiver.wait_for_one())
        circuit = gateway.get(f"/circuits/127.0.0.1:{receiver.port}").json()
        assert circuit["consecutive_failures"] == 0


def test_a_pipe_as_secret_file_fails_the_attempt_and_blocks_nothing(tmp_path: Path, receiver: Receiver) -> None:
    with signing(tmp_path, receiver) as (gateway, secret):
        os.mkfifo(tmp_path / "pipe")
        (tmp_path / "pipe").rename(secret)
        id = send(gateway)
        attempt = until(lambda: gateway.message(id)["attempts"])[0]
        assert (attempt["error"], attempt["fault"]) == ("secret", "here")
        assert "can't be read: it is not a" in attempt["detail"]
        gateway.post(f"{receiver.url}/other")
        assert receiver.wait_for_one().path == "/other"


def test_a_message_of_a_signed_route_is_not_sent_unsigned_when_the_route_is_gone(
    tmp_path: Path, receiver: Receiver
) -> None:
    receiver.answer = lambda request: 500
    with signing(tmp_path, receiver, retry__base="400ms") as (gateway, _):
        id = send(gateway)
        receiver.wait_for_one()
        (tmp_path / "holdfast.toml").write_text("")
        assert gateway.call("POST", "/v1/reload").json()["changed"] == ["routes.billing"]
        failed = until(lambda: [each for each in gateway.message(id)["attempts"] if each["error"] == "secret"])[0]
        assert "billing" in failed["detail"]
        assert all("webhook-signature" in request.headers for request in receiver.requests)


@pytest.mark.parametrize("command", ["run", "check"])
def test_a_missing_secret_at_start_is_a_fault_of_the_config(tmp_path: Path, command: str) -> None:
    config = tmp_path / "holdfast.toml"
    config.write_text(
        '[routes.a]\nurl = "https://a.example"\nsign = { secret_file = "nothing" }\n'
        '[routes.b]\nurl = "https://b.example"\nsign = { secret_env = "NOT_SET_ANYWHERE" }\n'
    )
    done = fork_server.run(command, "--config", str(config), env=settings(tmp_path / "store"), cwd=tmp_path)
    assert done.returncode == 2
    unread = f"the file can't be read: No such file or directory; of its path there is {tmp_path}\n"
    assert f"routes.a.sign: {unread}" in done.stderr
    assert "routes.b.sign: the environment variable that secret_env names is not set" in done.stderr


def test_a_reload_with_a_missing_secret_keeps_the_old_config(tmp_path: Path, receiver: Receiver) -> None:
    with signing(tmp_path, receiver) as (gateway, secret):
        kept = secret.rename(tmp_path / "elsewhere")
        answer = gateway.call("POST", "/v1/reload")
        assert answer.status_code == 422
        (fault,) = answer.json()["faults"]
        assert fault.startswith("routes.billing.sign: ")
        kept.rename(secret)
        send(gateway)
        verify(OLD, receiver.wait_for_one())


def test_secrets_are_shown_nowhere(tmp_path: Path, receiver: Receiver) -> None:
    receiver.answer = lambda request: 500
    with signing(tmp_path, receiver, log__level="debug") as (gateway, secret):
        secret.write_text(f"{OLD}\n{NEW}")
        id = send(gateway)
        until(lambda: gateway.message(id)["attempts"])
        seen = [
            gateway.get(path).text
            for path in ("/status", "/circuits", f"/messages/{id}", "/metrics", "/", "/page.json")
        ]
        seen += [gateway.call("GET", path).text for path in ("/v1/status", "/v1/messages", f"/v1/messages/{id}")]
        gateway.stop()
        export = tmp_path / "export.jsonl"
        assert fork_server.run("export", str(export), env=settings(tmp_path / "store")).returncode == 0
        assert id in export.read_text()
        seen += [gateway.log.read_text(), export.read_text()]
    files = [path.read_bytes() for path in (tmp_path / "store").iterdir() if path.is_file()]
    for bare in (OLD.removeprefix("whsec_"), NEW.removeprefix("whsec_")):
        assert not any(bare in text for text in seen)
        assert not any(bare.encode() in data for data in files)
    for raw in (b"old " * 8, b"new " * 8):
        assert not any(raw in data for data in files)
