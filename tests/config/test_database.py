"""`store.url`: which URLs are taken, which keys go with it, and that no password is shown."""

from __future__ import annotations

import pytest

from holdfast.config import Config, ConfigError, ConfigFault, build

URL = "postgresql://holdfast:hunter2@db.example:5432/hooks?sslmode=require&application_name=a"


def faults_of(mapping: dict[str, dict[str, object]], **surroundings: dict[str, str]) -> tuple[ConfigFault, ...]:
    with pytest.raises(ConfigError) as caught:
        build(mapping, **surroundings)  # type: ignore[arg-type]
    return caught.value.faults


def shown(url: str) -> str:
    config = build({"store": {"url": url}})
    assert config.store.url is not None
    assert config.store.url.whole == url
    return str(config.store.url)


@pytest.mark.parametrize(
    ("url", "as_text"),
    [
        (URL, "postgresql://db.example:5432/hooks"),
        ("postgres://db/hooks", "postgresql://db/hooks"),
        ("postgresql://holdfast@db", "postgresql://db"),
        (
            "postgresql://u:hunter2@a:5432,b:5433/hooks?target_session_attrs=read-write",
            "postgresql://a:5432,b:5433/hooks",
        ),
        ("postgresql://u:hunter%402%2F@[::1]:5432/hooks", "postgresql://[::1]:5432/hooks"),
        ("postgresql://%2Fvar%2Frun%2Fpostgresql/hooks", "postgresql://%2Fvar%2Frun%2Fpostgresql/hooks"),
        ("postgresql:///hooks?host=/var/run/postgresql&password=hunter2", "postgresql:///hooks"),
        ("postgresql://", "postgresql://"),
        ("postgresql://u:hunter2:#$;@db.example/hooks", "postgresql://db.example/hooks"),
    ],
)
def test_a_url_is_kept_whole_and_shown_without_secrets(url: str, as_text: str) -> None:
    assert shown(url) == as_text


def test_without_a_url_the_store_is_embedded() -> None:
    assert build({"store": {"url": "", "spool": False}}) == build({})
    assert build({}, environ={"HOLDFAST_STORE__URL": "", "HOLDFAST_STORE__SPOOL": "false"}) == build({})


def test_a_url_can_come_from_the_environment() -> None:
    config = build({}, environ={"HOLDFAST_STORE__URL": URL, "HOLDFAST_STORE__SPOOL": "true"})
    assert config.store.spool
    assert config == build({"store": {"url": URL, "spool": True}})


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("host=db user=holdfast password=hunter2", "is a list of key=value pairs, not a postgresql:// URL"),
        ("dbname = hunter2", "is a list of key=value pairs, not a postgresql:// URL"),
        ("jdbc:postgresql://db/hunter2", "is not a postgresql:// URL"),
        ("postgresql+psycopg://u:hunter2@db/hooks", "is not a postgresql:// URL"),
        ("mysql://u:hunter2@db/hooks", "is not a postgresql:// URL"),
        ("db.example:5432/hunter2", "is not a postgresql:// URL"),
        (f"{URL}\n", "holds a space or a line break, perhaps at its end"),
        ("postgresql://u:hunter2 x@db/hooks", "holds a space or a line break, perhaps at its end"),
        ("postgresql://u:hunter2%@db/hooks", "has a percent sign that encodes nothing"),
        ("postgresql://u:hunter2%zz@db/hooks", "has a percent sign that encodes nothing"),
        ("postgresql://u:hunter2%00@db/hooks", "has a percent sign that encodes nothing"),
        ("postgresql://u:hunter2@x@db/hooks", "can't be read"),
        ("postgresql://u:12/hunter2@db/hooks", "can't be read"),
        ("postgresql://u:12?hunter2@db/hooks", "can't be read"),
        ("postgresql://db/hooks/hunter2", "can't be read"),
        ("postgresql://db/hooks?hunter2", "can't be read"),
        ("postgresql://db/hooks?options=-chunter2=1", "can't be read"),
        ("postgresql://db/hooks?a=hunter2&", "can't be read"),
        ("postgresql://u:hunter2/db", "has a host or port that is none"),
        ("postgresql://db:0/hunter2", "has a host or port that is none"),
        ("postgresql://db:65536/hunter2", "has a host or port that is none"),
        ("postgresql://a:5432,hunter2:x/hooks", "has a host or port that is none"),
        ("postgresql://[hunter2]/hooks", "has a host or port that is none"),
    ],
)
def test_bad_urls_are_refused_without_repeating_them(url: str, problem: str) -> None:
    (fault,) = faults_of({}, environ={"HOLDFAST_STORE__URL": url})
    assert fault.key == "store.url"
    assert fault.problem.startswith(problem)
    assert "postgresql://user:password@host:5432/database" in fault.allowed
    assert "hunter2" not in str(fault)
    assert "from HOLDFAST_STORE__URL" in str(fault)


@pytest.mark.parametrize("value", [5, True, ["postgresql://db"], None])
def test_a_url_is_text(value: object) -> None:
    (fault,) = faults_of({"store": {"url": value}})
    assert fault.key == "store.url"


def test_no_password_is_in_repr_or_str() -> None:
    config: Config = build({"store": {"url": URL}})
    for spelled in (repr(config), str(config), repr(config.store), f"{config.store.url}", repr(config.store.url)):
        assert "hunter2" not in spelled


def test_a_spool_needs_a_database() -> None:
    (fault,) = faults_of({"store": {"spool": True}})
    assert (fault.key, fault.allowed) == ("store.spool", "false, or with store.url set")
    (fault,) = faults_of({"store": {"spool": 0}})
    assert fault.allowed == "true or false"


@pytest.mark.parametrize(
    ("mapping", "key", "says"),
    [
        ({"process": {"split": True}}, "process.split", "scale ingest with --role instead"),
        (
            {"drain": {"handoff": "http://gateway:8800"}, "ingest": {"token_file": "/run/token"}},
            "drain.handoff",
            "what waits is in the database",
        ),
    ],
)
def test_keys_for_the_embedded_store_are_refused(mapping: dict[str, dict[str, object]], key: str, says: str) -> None:
    build(mapping)
    (fault,) = faults_of({**mapping, "store": {"url": URL}})
    assert fault.key == key
    assert says in fault.problem
