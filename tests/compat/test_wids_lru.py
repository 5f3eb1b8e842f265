"""A dictionary that removes the least recently used items."""

from tarmac.compat.wids.wids_lru import LRUCache


def make_cache(capacity=2):
    released = []
    return LRUCache(capacity, release_handler=lambda key, value: released.append((key, value))), released


def test_the_least_recently_used_item_is_removed():
    cache, released = make_cache()
    cache["a"], cache["b"] = 1, 2
    assert cache["a"] == 1
    cache["c"] = 3
    assert released == [("b", 2)]
    assert list(cache.keys()) == ["a", "c"]
    assert list(cache.values()) == [1, 3]
    assert list(cache.items()) == [("a", 1), ("c", 3)]
    assert "b" not in cache
    assert cache["b"] is None
    assert len(cache) == 2


def test_every_value_is_released_once():
    """The library released every value twice in `clear`."""
    cache, released = make_cache()
    cache["a"], cache["b"] = 1, 2
    cache["b"] = 2
    del cache["a"]
    del cache["a"]
    cache.clear()
    cache.clear()
    assert released == [("a", 1), ("b", 2)]


def test_a_replaced_value_is_released():
    cache, released = make_cache()
    cache["a"] = 1
    cache["a"] = 2
    assert released == [("a", 1)]
    assert cache["a"] == 2
    plain = LRUCache(1)
    plain["a"], plain["b"] = 1, 2
    assert len(plain) == 1
