"""hadolint accepts the Dockerfile."""

from tests.deploy.dockerfile import DOCKERFILE
from tests.deploy.tools import run, tool


def test_hadolint_accepts_the_dockerfile() -> None:
    done = run(tool("hadolint"), "--no-color", DOCKERFILE)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
