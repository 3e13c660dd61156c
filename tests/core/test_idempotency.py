"""The digests of idempotency keys: their scope is the method, the target and the route."""

from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.idempotency import handoff_digest, key_digest

URL = "https://api.example.com/hooks/7"


def test_without_a_route_the_digest_is_that_of_earlier_versions():
    """Keys that an earlier version stored are still recognised."""
    assert key_digest(b"k-1", "POST", URL, None).hex() == "904b531dccf982fed575e152efad35e6"


def test_each_route_is_a_scope_of_its_own():
    routes = (None, "billing", "billing-2")
    assert len({key_digest(b"k", "POST", URL, route) for route in routes}) == len(routes)


SCOPES = st.tuples(
    st.binary(min_size=1, max_size=24) | st.sampled_from([b"POST http://h/ k", b"k", b"route r POST http://h/ k"]),
    st.sampled_from(["POST", "PUT"]),
    st.sampled_from(["http://h/", "http://h/route", "http://h/r", "http://h/POST"]),
    st.none() | st.sampled_from(["r", "route", "post", "handoff", "http"]),
)


@given(SCOPES, SCOPES)
def test_different_parts_never_give_the_same_digest(one, other):
    assert (key_digest(*one) == key_digest(*other)) == (one == other)


@given(st.binary(min_size=16, max_size=16), SCOPES)
def test_no_key_of_an_app_collides_with_a_message_that_was_taken_over(id, scope):
    assert handoff_digest(id) != key_digest(*scope)


def test_a_route_named_handoff_collides_with_no_message_that_was_taken_over():
    id = b"POST http://a/ k"
    assert handoff_digest(id) != key_digest(b"k", "POST", "http://a/", "handoff")
