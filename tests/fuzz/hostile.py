"""Values, texts and documents that nobody should hand to a program, and that somebody will."""

from __future__ import annotations

import gzip
import random
from typing import Final

NUMBERS: Final = (
    "0", "-0.0", "-1", "1", "2", "3", "7", "64", "0.5", "1.5", "1e-320", "5e-324", "1e-160", "1e-9", "1e300",
    "1e308", "1e400", "-1e400", "NaN", "nan", ".nan", ".inf", "-.inf", "inf", "Infinity", "-Infinity", "2147483647",
    "2147483648", "4294967295", "4294967296", "9007199254740993", "9223372036854775806", "9223372036854775807",
    "9223372036854775808", "-9223372036854775808", "-9223372036854775809", "18446744073709551615",
    "18446744073709551616", "1000000", "1000000000", "1000000000000", "1000000000000000000", "1" + "0" * 400,
    "9" * 5000, "-" + "9" * 5000, "0." + "0" * 400 + "1", "1e999999999", "1e-999999999", "1e2", "1E5", "١٢", "²",
    "Ⅷ", "１２", "1_000", "0x10", "0o17", "010", "0b11", "1:30", "+5", " 5 ", "5.", ".5", "1e", "--1", "1,000", "5%",
)  # fmt: skip
"""As text; which of them are numbers depends on who reads."""

VALID_NUMBERS: Final = (
    "0", "1", "2", "3", "4", "5", "7", "8", "16", "17", "63", "64", "65", "100", "127", "128", "255", "256", "1000",
    "4095", "4096", "10000", "65535", "65536", "100000", "1000000", "16777217", "1000000000", "2147483647",
    "2147483648", "4294967295", "4294967296", "1000000000000", "9007199254740993", "9223372036854775807",
    "9223372036854775808", "1000000000000000000000", "-1", "0.0", "-0.0", "0.1", "0.5", "0.9", "0.999999999", "1.0",
    "1.5", "2.5", "1e-320", "1e-160", "1e-30", "1e-9", "1e-3", "1e3", "1e6", "1e12", "1e15", "1e18", "1e19",
    "1e100", "1e160", "1e300", "1e308",
)  # fmt: skip
"""What every reader takes for a number, at the ends of what programs count with."""

VALID_QUANTITIES: Final = (
    "1bps", "8bps", "1kbps", "10Mbps", "1Gbps", "400Gbps", "3.2Tbps", "1Pbps", "9000Pbps", "9Ebps", "1e15bps",
    "1e18bps", "1e19bps", "0ps", "1ps", "25ns", "500ns", "1us", "1ms", "1s", "1000s", "9223371s", "9223372s",
    "9223373s", "1e6s", "1e7s", "1e12s",
)  # fmt: skip

QUANTITIES: Final = (
    "0bps", "1bps", "400Gbps", "1e400Gbps", "1e99Gbps", "9999999999999999999Tbps", "0.1bps", "-1Gbps", "NaNGbps",
    "infGbps", "١Gbps", "400 G bps", "400gbps", "1e5Gbps", "1e-5Gbps", "0ns", "1ps", "0.5ps", "500ns", "1e18s",
    "9223372s", "9223373s", "106days", "1e99s", "99999999999999999999999s", "-5us", "5µs", "1" + "0" * 5000 + "s",
    "9" * 5000 + "Gbps", "1e99999s", "16KiB", "1e30B", "9223372036854775807B", "9223372036854775808B", "1PB",
    "99999PB", "1TiB", "0B", "1.5B", "5Mbps per 0bps", "5Mbps per 25Gbps", "5Mbps per", "per 25Gbps", "1e2", "400",
)  # fmt: skip

LONG_TEXT: Final = "x" * 200_000

TEXTS: Final = (
    "", " ", "a", "null", "~", "true", "no", "a\0b", "\ud800", "\udcff", "‮abc", "a\rb", "a\nb", "a\r\nb", "\t",
    "\x1b[31m", "\x7f", "\x85", "\u2028", "\ufeff", "a\u0301", "ß", "İ", "日本", "💥", "../..", "/", ".", "..",
    "/dev/null", "/dev/zero", "/proc/self/mem", "~/x", "x" * 256, "x/" * 3000 + "x", LONG_TEXT, "%s%n", "{}",
    "{0.__class__}", "[red]", "[/]", "<script>", "a;b", "a,b", 'a"b', "a'b", "'", '"', "`", "$HOME", "-", "--",
    "-x", "#", ":", "a: b", "a=b", "=", "?", "|", ">", "&a", "*a", "!x", "@", "\\", "\\x00", "nan", "1e5",
    "2001-01-01", "12:30:45", "0x1F", "=1+1",
)  # fmt: skip

YAML_SCALARS: Final = (
    "!!int abc", "!!int ''", "!!float abc", "!!float ''", "!!bool abc", "!!null abc", "!!timestamp abc",
    "!!timestamp 2001-99-99", "!!binary abc", "!!binary '***'", "!!str 5", "!!set {a, b}", "!!omap [a: 1]",
    "!!pairs [a: 1]", "!!omap 5", "!!set 5", "!!map 5", "!!seq 5", "!!str [1]", "!!int [1]", "!!float {a: 1}",
    "!!python/object:os.system {}", "!!python/object/apply:os.system ['true']", "!!python/name:os.system ''",
    "!unknown x", "!<tag:yaml.org,2002:int> x", "2001-01-01", "2001-13-45", "2001-01-01 25:61:61",
    "2001-01-01T00:00:00Z", "1:2:3", "190:20:30.15", "0b2", "0b_", "0x", "0x_", "0_", "_", "1__0", "<<", "=", "~",
    "yes", "*missing", "&a [*a]", "&a {b: *a}", "&a {*a : 1}", "{[1]: 2}", "{{a: 1}: 2}", "{? [a] : b}",
    "{null: 1}", "{1: 2}", "{true: 1}", "{2001-01-01: 1}", "{<<: 5}", "{<<: [5]}", "{<<: {a: 1}}",
    "{<<: [{a: 1}, {a: 2}]}", "{<<: null}", "{a: 1, a: 2}", '"\\ud800"', '"\\0"', '"\\x00"', '"\\uDC00\\uD800"',
    '"\\U00110000"', '"a\\rb"', "'a", '"a', "[", "{", "]", "}", "[,]", "{,}", "%", "@x", "`x", "|\n  a", ">-\n  a",
    "- - -", "? ?", "a: b: c", ": :", "\t", "!", "! x", "&", "*",
)  # fmt: skip
"""Verbatim, for the place of any value."""


def deep_sequences(levels: int) -> str:
    """``[[[…]]]``: also JSON."""
    return "[" * levels + "]" * levels


def deep_mappings(levels: int) -> str:
    """``{"a": {"a": …}}``: also JSON."""
    return '{"a": ' * levels + "1" + "}" * levels


def alias_bomb(levels: int = 12) -> str:
    """Each level holds the one before ten times."""
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, levels)]
    return "\n".join(lines) + "\n"


def merge_bomb(levels: int = 25) -> str:
    """Each level merges the one before twice."""
    lines = ["m0: &m0 {x: 1}"]
    lines += [f"m{i}: &m{i} {{<<: [*m{i - 1}, *m{i - 1}]}}" for i in range(1, levels)]
    return "\n".join(lines) + "\n"


def yaml_value(rng: random.Random) -> str:
    """YAML for the place of a value."""
    match rng.randrange(12):
        case 0:
            return deep_sequences(rng.choice((5, 100, 1000, 40_000)))
        case 1:
            return deep_mappings(rng.choice((5, 100, 1000, 40_000)))
        case 2:
            return "[" + ", ".join(["x"] * rng.choice((1, 1000, 100_000))) + "]"
        case _:
            return rng.choice(YAML_SCALARS)


DOCUMENTS: Final = (
    "&a [*a]", "&a {a: *a}", "", " \n\n", "# nothing\n", "---\n---\n", "a: 1\n---\nb: 2\n", "...",
    "%YAML 9.9\n---\na: 1\n", "%TAG ! x\n---\na", "null", "5", "text", "[]", "{}", "- a\n- b\n", "a: b\n\tc: d\n",
    "\ufeffa: 1\n", "a: " + LONG_TEXT, LONG_TEXT + ": 1", "!!python/object:os.system {}\n", "1: 2\n", "[1]: 2\n",
    "? {a: 1}\n: 2\n", "null: 1\n", "{a: 1, a: 2}", "<<: *x", "a: 'open",
)  # fmt: skip
"""YAML, or not, that is no configuration."""


def yaml_document(rng: random.Random) -> str:
    """A whole document that is none, more than one, or far too large."""
    match rng.randrange(35):
        case 0:
            return alias_bomb()
        case 1:
            return merge_bomb()
        case 2:
            return deep_sequences(40_000)
        case 3:
            return deep_mappings(40_000)
        case 4:
            return "- " * 40_000 + "a"
        case 5:
            return "? " * 40_000 + "a"
        case 6:
            return "a:\n" + "".join(f"{' ' * level}a:\n" for level in range(1, 2000))
        case 7:
            return "".join(f"k{number}: {number}\n" for number in range(20_000))
        case _:
            return rng.choice(DOCUMENTS)


def damaged_bytes(content: bytes, rng: random.Random) -> bytes:
    """The same bytes, damaged as files are: cut, flipped, doubled, in another encoding, compressed, gone."""
    match rng.randrange(14):
        case 0:
            return b""
        case 1:
            return content[: rng.randrange(len(content) + 1)]
        case 2 | 3 | 4:
            return _with_bytes(content, rng)
        case 5:
            return content.decode("utf-8", "replace").encode(rng.choice(("utf-16", "utf-32", "utf-16-le", "utf-7")))
        case 6:
            return b"\xef\xbb\xbf" + content
        case 7:
            return content.replace(
                b"\n", rng.choice((b"\r", b"\r\n", b"\n\n", b"\x0b", b"\xc2\x85", b"\xe2\x80\xa8", b""))
            )
        case 8:
            return content + content
        case 9:
            return bytes(rng.randrange(256) for _ in range(rng.randrange(1, 300)))
        case 10:
            return gzip.compress(content, mtime=0)
        case 11:
            packed = bytearray(gzip.compress(content, mtime=0))
            packed[rng.randrange(len(packed))] ^= 1 << rng.randrange(8)
            return bytes(packed[: rng.randrange(2, len(packed) + 1)])
        case 12:
            return content.rstrip(b"\n") + rng.choice((b"\0", b"\x1a", b"\xff", b"\xc3", b"\xed\xa0\x80", b"\n" * 1000))
        case _:
            return content.replace(b" ", rng.choice((b"\t", b"\xc2\xa0", b"  ", b"")))


def _with_bytes(content: bytes, rng: random.Random) -> bytes:
    damaged = bytearray(content or b" ")
    for _ in range(rng.choice((1, 1, 2, 5, 20))):
        at = rng.randrange(len(damaged))
        match rng.randrange(4):
            case 0:
                damaged[at] = rng.choice(b"\0\xff\x80\r\n\t\"',;:[]{}#&*!|>%@`~=-0129eE. ")
            case 1:
                damaged[at] ^= 1 << rng.randrange(8)
            case 2:
                del damaged[at : at + rng.choice((1, 1, 4, 20))]
                damaged = damaged or bytearray(b" ")
            case _:
                damaged[at:at] = damaged[at : at + rng.choice((1, 8, 60))]
    return bytes(damaged)
