"""The compose files match their schema and the image, and the parts of the example work together."""

import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import yaml

from holdfast.config import load
from tests.deploy.dockerfile import REPOSITORY, stages
from tests.deploy.tools import run, tool
from tests.support.harness import PATIENCE, Gateway, running, until
from tests.support.ports import refusing_port

FOLDER = REPOSITORY / "deploy" / "compose"
COMPOSE, FLEET = FOLDER / "compose.yaml", FOLDER / "fleet.yaml"
AFTER_THE_DRAIN = 5


def services(file: Path = COMPOSE) -> dict[str, Any]:
    return dict(yaml.safe_load(file.read_text())["services"])


def test_the_compose_files_match_their_schema() -> None:
    done = run(tool("check-jsonschema"), "--builtin-schema", "vendor.compose-spec", COMPOSE, FLEET)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_compose_files_run_the_image_as_the_dockerfile_describes() -> None:
    holdfast, image = services()["holdfast"], stages()[-1]
    assert (FOLDER / holdfast["build"]).resolve() == REPOSITORY
    assert holdfast["image"] == f"holdfast:{image.labels['org.opencontainers.image.version']}"
    assert holdfast["healthcheck"]["test"] == ["CMD", *image.health]
    mounted = dict(each.split(":")[:2] for each in holdfast["volumes"])
    assert mounted["store"] == image.one("VOLUME")
    assert mounted["./holdfast.toml"] == holdfast["environment"]["HOLDFAST_CONFIG"]
    assert {each["image"] for name, each in services().items() if name != "holdfast"} == {image.image}


def test_every_service_is_locked_down() -> None:
    added = services(FLEET)
    for each in (*services().values(), added["database"], added["replica"]):
        assert each["read_only"] is True
        assert each["cap_drop"] == ["ALL"]
        assert each["security_opt"] == ["no-new-privileges:true"]


def test_a_stop_has_time_to_drain() -> None:
    drain = load(str(FOLDER / "holdfast.toml"), {"HOME": "/"}, {}).drain
    grace = re.fullmatch(r"(\d+)s", services()["holdfast"]["stop_grace_period"])
    assert grace is not None
    assert int(grace[1]) >= drain.timeout / 1000 + AFTER_THE_DRAIN


def test_the_second_replica_of_a_fleet_is_like_the_first() -> None:
    """But for its own volume, and that its page is not published."""
    added = services(FLEET)
    first = services()["holdfast"]
    first["environment"] |= added["holdfast"]["environment"]
    del first["build"], first["ports"]
    second = added["replica"]
    assert second.pop("volumes") == [each.replace("store:", "replica:") for each in first.pop("volumes")]
    assert second == {**first, "depends_on": added["holdfast"]["depends_on"]}


def test_the_replicas_of_a_fleet_use_the_database() -> None:
    added = services(FLEET)
    database = added["database"]
    config = load(str(FOLDER / "holdfast.toml"), {"HOME": "/", **added["replica"]["environment"]}, {})
    assert config.store.url is not None
    user, password = (database["environment"][f"POSTGRES_{name}"] for name in ("USER", "PASSWORD"))
    # Without POSTGRES_DB the image names the database after the user.
    assert config.store.url.whole == f"postgresql://{user}:{password}@database/{user}"
    assert added["replica"]["depends_on"] == {"database": {"condition": "service_healthy"}}
    assert f"--username={user}" in database["healthcheck"]["test"]


@contextmanager
def printing(words: list[str], **environment: str) -> Iterator["subprocess.Popen[str]"]:
    process = subprocess.Popen(words, env=os.environ | environment, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    # Whoever waits for a line that never comes sees the end instead.
    end = threading.Timer(PATIENCE, process.kill)
    end.start()
    with process.stdout:
        try:
            yield process
        finally:
            end.cancel()
            process.kill()
            process.wait(PATIENCE)


def said(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    return process.stdout.readline()


@contextmanager
def example(folder: Path, **keys: object) -> Iterator[tuple[Gateway, str]]:
    """The parts of the file as real processes; only names and ports are of this machine. The gateway, and the id of the
    first order when it has arrived.
    """
    port = refusing_port()
    config = folder / "holdfast.toml"
    text = (FOLDER / "holdfast.toml").read_text()
    config.write_text(text.replace("receiver:9000", f"127.0.0.1:{port}").replace("0.0.0.0:8801", "127.0.0.1:0"))
    words = {
        name: [word.replace("/example", str(REPOSITORY / "deploy/example")) for word in services()[name]["command"][1:]]
        for name in ("app", "receiver")
    }
    with ExitStack() as stack:
        receiver = stack.enter_context(
            printing([sys.executable, words["receiver"][0], str(port), *words["receiver"][2:]])
        )
        assert said(receiver) == f"receiving on http://0.0.0.0:{port}/\n"
        # The route alone opens the receiver's address, as it does in the file.
        gateway = stack.enter_context(
            running(folder / "store", config, egress__allow_loopback=None, egress__allow_ports=None, **keys)
        )
        url = services()["app"]["environment"]["WEBHOOK_URL"].replace("127.0.0.1:8800", gateway.ingest)
        app = stack.enter_context(printing([sys.executable, *words["app"]], WEBHOOK_URL=url))
        acknowledged = re.fullmatch(r"order 1: 202 (msg_\w+)\n", said(app))
        assert acknowledged is not None
        assert said(receiver) == f"POST /hook {acknowledged[1]} -> 200: b'{{\"order\": 1}}'\n"
        yield gateway, acknowledged[1]


def test_app_gateway_and_receiver_work_together(tmp_path: Path) -> None:
    with example(tmp_path) as (gateway, id):
        until(lambda: gateway.message(id)["state"] == "delivered")


def test_in_a_fleet_either_replica_shows_the_message(tmp_path: Path, database: str) -> None:
    with example(tmp_path, store__url=database) as (_, id):
        with running(tmp_path / "replica", tmp_path / "holdfast.toml", store__url=database) as replica:
            until(lambda: replica.message(id)["state"] == "delivered")
