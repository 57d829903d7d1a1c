"""Eviction policies against oracles written from the papers: any accesses, and the chunks of the Mooncake traces."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from boundary.errors import InputError
from tests.vidur_pd.kv_store.oracles import ORACLES, LruOracle, Oracle
from vidur_pd.kv.store.eviction import Eviction
from vidur_pd.kv.store.eviction.asked import AskedEviction
from vidur_pd.kv.store.eviction.registry import eviction_class

TRACES = Path(__file__).parents[4] / "shared/data/traces"
ASKED = 250
CHUNKS_PER_ID = 2


class Watched:
    """A policy and what its owner knows to be there."""

    def __init__(self, name: str, capacity: int) -> None:
        self.policy: Eviction = eviction_class("eviction", name)()
        self.policy.capacity = capacity
        self.held: set[int] = set()

    def access(self, key: int) -> bool:
        if key in self.held:
            self.policy.hit(key)
            return True
        left = self.policy.add(key)
        self.held.add(key)
        assert self.held.issuperset(left), "what leaves was there"
        self.held.difference_update(left)
        assert len(self.held) <= self.policy.capacity
        return False


def hits(cache: Oracle | Watched, keys: list[int]) -> list[bool]:
    return [cache.access(key) for key in keys]


@pytest.mark.parametrize("name", ORACLES)
@given(capacity=st.integers(1, 12), keys=st.lists(st.integers(0, 20), max_size=150))
@settings(max_examples=60, deadline=None)
def test_hits_are_those_of_the_papers_rules(name: str, capacity: int, keys: list[int]) -> None:
    assert hits(Watched(name, capacity), keys) == hits(ORACLES[name](capacity), keys)


def chunks_of_trace(trace: str) -> list[int]:
    """Numbers of the 256-token chunks of the prompts, in the order in which a tier is asked for them."""
    path = TRACES / f"mooncake_{trace}_trace.jsonl.gz"
    if not path.exists():
        pytest.skip(f"{path.name} is not beside this checkout")
    numbers: dict[tuple[int, int, int], int] = {}
    keys: list[int] = []
    with gzip.open(path, "rt") as lines:
        rows = [json.loads(line) for line, _ in zip(lines, range(ASKED), strict=False)]
    for row in rows:
        before, chain = -1, []
        for chunk in range(row["input_length"] // 256):
            content = (before, row["hash_ids"][chunk // CHUNKS_PER_ID], chunk % CHUNKS_PER_ID)
            before = numbers.setdefault(content, len(numbers))
            chain.append(before)
        keys += reversed(chain)
    return keys


@pytest.mark.parametrize("trace", ["conversation", "synthetic"])
def test_hits_on_the_mooncake_traces_are_those_of_the_papers_rules(trace: str) -> None:
    """A cache of 400 chunks (102,400 tokens), a few prompts."""
    keys = chunks_of_trace(trace)
    found = {}
    for name, oracle in ORACLES.items():
        mine, expected = hits(Watched(name, 400), keys), hits(oracle(400), keys)
        assert mine == expected, name
        found[name] = sum(mine)
    assert min(found.values()) > 0
    assert len(set(found.values())) > 1, "policies differ"


def test_a_key_that_is_used_twice_outlives_a_scan() -> None:
    """By hand, 10 chunks: two are used three times each, then 30 come once. LRU forgets them, the others do not."""
    keys = [100, 101] * 3 + list(range(30)) + [100, 101]
    kept = {name: hits(Watched(name, 10), keys)[-2:] for name in ORACLES}
    assert kept == {"lru": [False, False], "lfu": [True, True], "s3_fifo": [True, True], "arc": [True, True]}
    assert hits(LruOracle(10), keys)[-2:] == [False, False]


def test_the_policy_of_the_architecture_page_is_first_in_first_out(tmp_path: Path) -> None:
    page = (Path(__file__).parents[3] / "docs" / "architecture.md").read_text(encoding="utf-8")
    (text,) = re.findall(r"```python\n# file: fifo\.py\n(.*?)```", page, re.DOTALL)
    (tmp_path / "fifo.py").write_text(text)
    cache = Watched(f"{tmp_path / 'fifo.py'}:Fifo", 2)
    assert hits(cache, [1, 2, 1, 3, 1, 2]) == [False, False, True, False, False, False]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("    def hit(self, key): pass", "found Mine without add, expected a class that defines add"),
        ("    def hit(self): pass\n    def add(self, key): return []", "found hit(self), expected hit(self, key)"),
        ("    def evict(self): pass", "found method evict, which nothing calls; expected hit, add, or _evict"),
    ],
)
def test_a_policy_that_cannot_work_is_refused_in_one_line(tmp_path: Path, body: str, message: str) -> None:
    (tmp_path / "mine.py").write_text(f"from vidur_pd.kv.store import Eviction\n\nclass Mine(Eviction):\n{body}\n")
    with pytest.raises(InputError, match=re.escape(message)):
        eviction_class("kv_cache.tiers.0.eviction", f"{tmp_path / 'mine.py'}:Mine")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("return None", "add returned None, expected a list of the chunks that leave"),
        ("return {key}", "add returned {1}, expected a list"),
        ("return [99]", "add let chunk 99 leave, expected chunks that are there, each once"),
        ("return [key, key]", "add let chunk 1 leave, expected chunks that are there, each once"),
        ("return ['first']", "add let chunk 'first' leave"),
        ("return []", "found 3 chunks that stay, expected at most its capacity 2"),
        ("return {}[key]", "raises: KeyError: 1 (mine.py:5)"),
        ("raise SystemExit", "raises: SystemExit:"),
    ],
)
def test_an_answer_that_breaks_a_rule_is_refused_with_policy_and_rule(tmp_path: Path, body: str, message: str) -> None:
    source = "from vidur_pd.kv.store import Eviction\nclass Mine(Eviction):\n    def hit(self, key): raise ValueError\n"
    (tmp_path / "mine.py").write_text(f"{source}    def add(self, key):\n        {body}\n")
    name = f"{tmp_path / 'mine.py'}:Mine"
    policy = AskedEviction(name, eviction_class("eviction", name), 2)
    with pytest.raises(InputError, match=re.escape(f"eviction policy mine.py:Mine: {message}")):
        _ = [policy.add(key) for key in (1, 2, 3)]
    with pytest.raises(InputError, match=re.escape("mine.py:Mine: raises: ValueError:  (mine.py:3)")):
        policy.hit(1)


def test_a_policy_of_ones_own_that_evicts_as_lru_gives_the_hits_of_lru(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("from vidur_pd.kv.store.eviction.lru import Lru\nclass Mine(Lru): ...\n")
    name = f"{tmp_path / 'mine.py'}:Mine"
    cache = Watched(name, 3)
    cache.policy = AskedEviction(name, eviction_class("eviction", name), 3)
    keys = [1, 2, 3, 1, 4, 5, 1, 2, 3, 4, 2, 2, 5]
    assert hits(cache, keys) == hits(LruOracle(3), keys)
