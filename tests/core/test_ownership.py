"""Each replica owns a fair part of the shards, and others that come or go move little. A replica is dead when it has
not renewed its lease.
"""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.ownership import LEASE, RENEW_EVERY, SHARDS, Liveness, owners_of_shards, shard_of

ONE, TWO = 1, 2
REPLICAS = st.frozensets(st.integers(0, (1 << 61) - 1), min_size=1, max_size=12)


def test_hosts_spread_over_all_shards_evenly() -> None:
    found = Counter(shard_of(f"hooks{number}.example.com:443") for number in range(100 * SHARDS))
    assert found.keys() == set(range(SHARDS))
    assert max(found.values()) < 2 * 100


def test_the_shard_of_a_host_never_changes() -> None:
    """Other replicas and stored rows rely on the number."""
    assert [shard_of(host) for host in ("a.test:80", "b.test:80", "ä.test:443")] == [57, 252, 39]


@given(REPLICAS)
def test_each_shard_belongs_to_one_of_the_replicas(replicas: frozenset[int]) -> None:
    belongs = owners_of_shards(replicas)
    assert belongs.keys() == set(range(SHARDS))
    assert set(belongs.values()) <= replicas


def test_no_replica_has_much_more_than_its_part() -> None:
    for count in range(1, 9):
        parts = Counter(owners_of_shards(frozenset(range(1_000, 1_000 + count))).values())
        assert len(parts) == count
        assert max(parts.values()) < 1.6 * SHARDS / count


@given(REPLICAS, st.integers(0, (1 << 61) - 1))
def test_a_replica_that_comes_or_goes_moves_only_its_own_part(others: frozenset[int], one: int) -> None:
    without, beside = owners_of_shards(others - {one}), owners_of_shards(others | {one})
    for shard, owner in without.items():
        assert beside[shard] in (owner, one)


def test_without_replicas_that_deliver_no_shard_has_an_owner() -> None:
    assert owners_of_shards(frozenset()) == {}


def watched(
    lives: Liveness, renewals: list[int], every: int = RENEW_EVERY, began: int = 50_000
) -> list[dict[int, int]]:
    """The dead found by each look at another replica with these counts of renewals."""
    return [lives.dead({TWO: count}, began + number * every) for number, count in enumerate(renewals)]


def test_a_replica_whose_renewals_stand_still_for_a_lease_is_dead() -> None:
    beats = LEASE // RENEW_EVERY
    found = watched(Liveness(), [3, 4, *[5] * (beats + 1)])
    assert not any(found[:-1])
    assert found[-1] == {TWO: 5}


def test_a_replica_that_renews_late_is_alive() -> None:
    beats = LEASE // RENEW_EVERY
    assert not any(watched(Liveness(), [*[3] * beats, *[4] * beats, *[5] * beats]))


def test_a_replica_that_was_paused_finds_nobody_dead() -> None:
    """Others on the same machine were paused too."""
    lives = Liveness()
    assert lives.dead({ONE: 7, TWO: 7}, 50_000) == {}
    assert lives.dead({ONE: 8, TWO: 7}, 50_000 + 10 * LEASE) == {}
    assert watched(lives, [7] * (LEASE // RENEW_EVERY), began=50_000 + 10 * LEASE) == [{}] * 6


def test_nobody_is_dead_because_of_an_outage_of_the_store() -> None:
    lives = Liveness()
    watched(lives, [3] * 6)
    lives.forget()
    assert not any(watched(lives, [3] * 6, began=56_000))


def test_a_removed_replica_is_forgotten() -> None:
    lives = Liveness()
    assert watched(lives, [3] * 7)[-1] == {TWO: 3}
    assert lives.dead({}, 57_000) == {}
    assert lives.dead({TWO: 3}, 58_000) == {}
