"""The config file and the files that it names: bounded in size, and waited for only at start."""

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.config import ConfigError, config_files, load, read_regular, stat_regular
from holdfast.config.config_files import MOST, MOST_OF_CONFIG

ENVIRON = {"HOME": "/home/u"}
TEXT = '[retry]\nbase = "1s"\n'


@pytest.fixture
def pipe() -> Iterator[tuple[Path, int]]:
    """A pipe as from <(...) in a shell, and its end to write to."""
    reading, writing = os.pipe()
    yield Path(f"/dev/fd/{reading}"), writing
    os.close(reading)


def fault(path: Path, *, again: bool = False) -> str:
    with pytest.raises(ConfigError) as caught:
        load(path, ENVIRON, again=again)
    (found,) = caught.value.faults
    assert found.key == str(path)
    return found.problem


# -- the config --------------------------------------------------------------------------------------------------------


def test_a_pipe_is_waited_for_at_start(pipe: tuple[Path, int]) -> None:
    path, writing = pipe
    os.write(writing, TEXT[:5].encode())

    def write_the_rest() -> None:
        with os.fdopen(writing, "w") as rest:
            rest.write(TEXT[5:])

    writer = threading.Thread(target=write_the_rest)
    writer.start()
    assert load(path, ENVIRON).retry.base == 1_000
    writer.join()


def test_a_pipe_is_not_read_a_second_time(pipe: tuple[Path, int]) -> None:
    """It is empty by then, and that is a valid config without routes."""
    path, writing = pipe
    with os.fdopen(writing, "w") as whole:
        whole.write(TEXT)
    load(path, ENVIRON)
    assert fault(path, again=True) == "can't be read: it is a pipe, which can be read only once"


def test_reading_a_pipe_without_a_writer_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config_files, "PATIENCE", 0.01)
    os.mkfifo(tmp_path / "named")
    assert fault(tmp_path / "named") == "can't be read: nothing came within 0 s"


def test_a_config_is_bounded_in_size(tmp_path: Path) -> None:
    path = tmp_path / "holdfast.toml"
    path.write_text(TEXT.ljust(MOST_OF_CONFIG))
    assert load(path, ENVIRON).retry.base == 1_000
    path.write_text(TEXT.ljust(MOST_OF_CONFIG + 1))
    for endless in (path, Path("/dev/zero")):
        for again in (False, True):
            assert fault(endless, again=again) == "can't be read: it is larger than 1 MiB"


def test_the_null_device_is_an_empty_config(tmp_path: Path) -> None:
    for again in (False, True):
        assert load("/dev/null", ENVIRON, again=again) == load(None, ENVIRON)
        assert fault(tmp_path, again=again) == "can't be read: Is a directory"


# -- what it names -----------------------------------------------------------------------------------------------------


def test_a_named_file_is_a_regular_file_of_a_bounded_size(tmp_path: Path) -> None:
    path, named = tmp_path / "secret", tmp_path / "pipe"
    path.write_bytes(b"x" * MOST)
    assert (stat_regular(path).st_size, len(read_regular(path))) == (MOST, MOST)
    with path.open("ab") as more:
        more.write(b"x")
    os.mkfifo(named)
    for look in (stat_regular, read_regular):
        with pytest.raises(OSError, match="it is larger than 4 MiB"):
            look(path)
        for other in (named, tmp_path, Path("/dev/zero")):
            with pytest.raises(OSError, match="it is not a regular file"):
                look(other)
        with pytest.raises(FileNotFoundError):
            look(tmp_path / "nothing")
