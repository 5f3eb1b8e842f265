"""A dictionary that lets go of what was used least recently."""

from tarmac.compat.lru import LRUCache


def made(capacity=2):
    gone = []
    return LRUCache(capacity, release_handler=lambda key, value: gone.append((key, value))), gone


def test_the_least_recently_used_goes():
    cache, gone = made()
    cache["a"], cache["b"] = 1, 2
    assert cache["a"] == 1
    cache["c"] = 3
    assert gone == [("b", 2)]
    assert list(cache.keys()) == ["a", "c"]
    assert list(cache.values()) == [1, 3]
    assert list(cache.items()) == [("a", 1), ("c", 3)]
    assert "b" not in cache
    assert cache["b"] is None
    assert len(cache) == 2


def test_everything_goes_once():
    """In wids clearing closed every value twice."""
    cache, gone = made()
    cache["a"], cache["b"] = 1, 2
    cache["b"] = 2
    del cache["a"]
    del cache["a"]
    cache.clear()
    cache.clear()
    assert gone == [("a", 1), ("b", 2)]


def test_a_value_that_is_replaced_goes():
    cache, gone = made()
    cache["a"] = 1
    cache["a"] = 2
    assert gone == [("a", 1)]
    assert cache["a"] == 2
    plain = LRUCache(1)
    plain["a"], plain["b"] = 1, 2
    assert len(plain) == 1
