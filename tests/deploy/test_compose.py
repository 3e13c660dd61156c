"""The compose file: accepted by its schema, true to the image, and its three parts work together."""

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

from deploy.dockerfile import REPOSITORY, stages
from deploy.tools import run, tool
from harness import PATIENCE, running
from holdfast.config import load
from ports import refusing_port

FOLDER = REPOSITORY / "deploy" / "compose"
COMPOSE = FOLDER / "compose.yaml"
AFTER_THE_DRAIN = 5


def services() -> dict[str, Any]:
    return dict(yaml.safe_load(COMPOSE.read_text())["services"])


def test_it_is_a_compose_file() -> None:
    done = run(tool("check-jsonschema"), "--builtin-schema", "vendor.compose-spec", COMPOSE)
    assert done.returncode == 0, done.stdout + done.stderr


def test_it_runs_the_image_as_the_dockerfile_means_it() -> None:
    holdfast, image = services()["holdfast"], stages()[-1]
    assert (FOLDER / holdfast["build"]).resolve() == REPOSITORY
    assert holdfast["image"] == f"holdfast:{image.labels['org.opencontainers.image.version']}"
    assert holdfast["healthcheck"]["test"] == ["CMD", *image.health]
    mounted = dict(each.split(":")[:2] for each in holdfast["volumes"])
    assert mounted["store"] == image.one("VOLUME")
    assert mounted["./holdfast.toml"] == holdfast["environment"]["HOLDFAST_CONFIG"]
    assert {each["image"] for name, each in services().items() if name != "holdfast"} == {image.image}


def test_everything_in_it_is_locked_down() -> None:
    for each in services().values():
        assert each["read_only"] is True
        assert each["cap_drop"] == ["ALL"]
        assert each["security_opt"] == ["no-new-privileges:true"]


def test_a_stop_has_time_to_drain() -> None:
    drain = load(str(FOLDER / "holdfast.toml"), {"HOME": "/"}, {}).drain
    grace = re.fullmatch(r"(\d+)s", services()["holdfast"]["stop_grace_period"])
    assert grace is not None
    assert int(grace[1]) >= drain.timeout / 1000 + AFTER_THE_DRAIN


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


def test_app_gateway_and_receiver_work_together(tmp_path: Path) -> None:
    """As real processes, with the commands of the file; only names and ports are of this machine."""
    port = refusing_port()
    config = tmp_path / "holdfast.toml"
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
            running(tmp_path / "store", config, egress__allow_loopback=None, egress__allow_ports=None)
        )
        url = services()["app"]["environment"]["WEBHOOK_URL"].replace("127.0.0.1:8800", gateway.ingest)
        app = stack.enter_context(printing([sys.executable, *words["app"]], WEBHOOK_URL=url))
        acknowledged = re.fullmatch(r"order 1: 202 (msg_\w+)\n", said(app))
        assert acknowledged is not None
        assert said(receiver) == f"POST /hook {acknowledged[1]} -> 200: b'{{\"order\": 1}}'\n"
