"""Reading of YAML: values as users mean them, and bounds before anything is built."""

from __future__ import annotations

import math
import time
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from boundary.errors import InputError
from boundary.yaml_text import MOST_DEPTH, dump_yaml, parse_yaml, parse_yaml_mapping

WORDS = [
    "1e5",
    "1e2.csv",
    "010",
    "0o17",
    "0x1f",
    "1_000",
    "12:30",
    "2024-01-01",
    "null",
    "~",
    "",
    "yes",
    "<<",
    "=",
    ".inf",
]
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(10**30), 10**30)
    | st.floats(allow_nan=False)
    | st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]))
    | st.sampled_from(WORDS)
)
TREES = st.dictionaries(
    st.text(max_size=8) | st.sampled_from(WORDS),
    st.recursive(SCALARS, lambda part: st.lists(part) | st.dictionaries(st.text(max_size=4), part), max_leaves=10),
)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e3", 1000.0),
        ("1e2.csv", "1e2.csv"),
        ("1e5Gbps", "1e5Gbps"),
        ("-.5e-3", -0.0005),
        ("1_000", 1000),
        ("0x10", 16),
        ("-0o17", -15),
        ("010", "010"),
        ("12:30", "12:30"),
        ("2024-01-01", "2024-01-01"),
        ("yes", True),
        ("'yes'", "yes"),
        ("~", None),
        (".inf", math.inf),
        ("١٢", "١٢"),
        ("", None),
    ],
)
def test_scalars_are_what_users_mean(text: str, value: object) -> None:
    found = parse_yaml(text, "c.yaml")
    assert (type(found), found) == (type(value), value)


@given(TREES)
@settings(suppress_health_check=[HealthCheck.too_slow])
def test_what_is_written_reads_back_equal(tree: dict[str, Any]) -> None:
    assert parse_yaml_mapping(dump_yaml(tree), "c.yaml", "anything") == tree


def test_aliases_are_copies_and_merged_keys_stand_behind_own_ones() -> None:
    text = "a: &a {x: 1, y: {z: 2}}\nb: *a\nc: {x: 5, <<: *a}\nd: {<<: [{x: 7}, *a]}\n"
    tree = parse_yaml(text, "c.yaml")
    assert tree["c"] == {"x": 5, "y": {"z": 2}}
    assert tree["d"] == {"x": 7, "y": {"z": 2}}
    tree["b"]["y"]["z"] = 3
    assert tree["a"]["y"]["z"] == tree["c"]["y"]["z"] == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[" * 40_000, f"line 1: found more than {MOST_DEPTH} levels of nesting"),
        ("a: " + "{b: " * 40_000, f"line 1: found more than {MOST_DEPTH} levels of nesting"),
        ("\n".join("- " * 200 for _ in range(2)), f"found more than {MOST_DEPTH} levels of nesting"),
        ("a: 1\nb: {c: 2,\n  c: 3}", "line 3: found the key 'c' twice"),
        ("a: 1\n'a': 2", "line 2: found the key 'a' twice"),
        ("a: !!int abc", "line 1: found the tag 'tag:yaml.org,2002:int'"),
        ("!!python/object:os.system {}", "found the tag 'tag:yaml.org,2002:python/object:os.system'"),
        ("a: 1\n--- \nb: 2", "line 2: found a second document"),
        ("? [1, 2]\n: 3", "line 1: found a list or mapping as a key"),
        ("&a [1, *a]", "found an alias of 'a', expected an anchor that ended before it"),
        ("*b", "found an alias of 'b'"),
        ("a: &a 1\nb: {<<: *a}", "found 1 under <<"),
        ("a: " + "9" * 5000, "found a number of 5000 digits"),
        ("a: \x00", "not YAML"),
        ("a: \ud800", "not YAML"),
        ("a: [", "not YAML"),
    ],
)
def test_what_nobody_means_is_refused_with_its_line(text: str, message: str) -> None:
    with pytest.raises(InputError, match=r"c\.yaml") as caught:
        parse_yaml(text, "c.yaml")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("use", ["[{}]", "{{<<: [{}]}}"])
def test_aliases_of_aliases_count_what_they_stand_for(use: str) -> None:
    """Ten levels of nine uses each stand for 9^10 values; the bound is reached at the seventh."""
    lines = ["a0: &a0 {k: [1, 1, 1, 1, 1, 1, 1, 1, 1]}"]
    lines += [f"a{i}: &a{i} " + use.format(", ".join([f"*a{i - 1}"] * 9)) for i in range(1, 11)]
    started = time.process_time()
    with pytest.raises(InputError, match=r"line \d+: found more than 1000000 keys and values"):
        parse_yaml("\n".join(lines), "c.yaml")
    assert time.process_time() - started < 5


def test_depth_counts_what_aliases_stand_for() -> None:
    """Each line nests 40 levels around the line before: the second is beyond the bound, and no copy recurses."""
    lines = ["a0: &a0 1"] + [f"a{i}: &a{i} {'[' * 40}*a{i - 1}{']' * 40}" for i in range(1, 2000)]
    with pytest.raises(InputError, match=r"line 3: found more than 64 levels"):
        parse_yaml("\n".join(lines), "c.yaml")


def test_a_document_that_is_no_mapping_is_shown_in_short() -> None:
    with pytest.raises(InputError) as caught:
        parse_yaml_mapping("[" + "1, " * 100_000 + "1]", "c.yaml", "a configuration")
    assert str(caught.value) == "c.yaml: found [1, 1, 1, 1, 1, 1, ...], expected a configuration: a mapping of fields"
