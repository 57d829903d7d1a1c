"""Trace files: what each format reads to, what is refused and how it is said, and that nothing is lost on the way."""

from __future__ import annotations

import contextlib
import gzip
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from boundary.errors import InputError, OutputError
from tests.vidur_pd.workload_cases import contents, load, real_trace, synthetic, workload
from vidur_pd.config.workload import TraceFormat
from vidur_pd.workload import BlockHashes, Workload, read_trace
from vidur_pd.workload.statistics import describe_workload, perfect_cache_hit_share
from vidur_pd.workload.writing import write_trace

OWN = "request_id,arrived_at_s,prefill_tokens,decode_tokens,hash_ids\na,0.25,600,3,7;8\nb,1.000000000001,512,1,7\n"
VIDUR = "arrived_at,num_prefill_tokens,num_decode_tokens\n0.5,10,2\n1.5,20,3\n"
LENGTHS = "num_prefill_tokens,num_decode_tokens,pd_ratio\n10,2,5.0\n20,3,6.67\n"
AZURE = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
    "2023-11-16 23:59:59.9799600,374,44\r\n2023-11-17 00:00:01.0000001,396,109"
)
BURSTGPT = (
    "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    "5,ChatGPT,472,18,490,Conversation log\n45,ChatGPT,1087,0,1087,Conversation log\n118,GPT-4,417,276,693,API log\n"
)
MOONCAKE = (
    '{"timestamp": 0, "input_length": 513, "output_length": 5, "hash_ids": [0, 1]}\n'
    '{"timestamp": 27482.5, "input_length": 9, "output_length": 4, "hash_ids": [2]}\n'
)
BAILIAN = (
    '{"chat_id": 1, "parent_chat_id": -1, "timestamp": 0.6, "input_length": 17, "output_length": 5, "type": "text", '
    '"turn": 1, "hash_ids": [3, 4]}\n'
)


def write(directory: Path, text: str, name: str = "trace") -> Path:
    path = directory / name
    path.write_bytes(text.encode())
    return path


@pytest.mark.parametrize(
    ("text", "name", "arrived_ps", "prefill", "decode", "ids"),
    [
        (OWN, "csv", [250 * 10**9, 10**12 + 1], [600, 512], [3, 1], [[7, 8], [7]]),
        (VIDUR, "vidur", [500 * 10**9, 1500 * 10**9], [10, 20], [2, 3], None),
        (LENGTHS, "vidur_lengths", [0, 0], [10, 20], [2, 3], None),
        (AZURE, "azure", [0, 1_020_040_100_000], [374, 396], [44, 109], None),
        (BURSTGPT, "burstgpt", [5 * 10**12, 118 * 10**12], [472, 417], [18, 276], None),
        (MOONCAKE, "mooncake", [0, 27_482_500_000_000], [513, 9], [5, 4], [[0, 1], [2]]),
        (BAILIAN, "qwen_bailian", [600 * 10**9], [17], [5], [[3, 4]]),
    ],
)
@pytest.mark.parametrize("is_compressed", [False, True])
def test_each_format_is_recognised_and_read_to_the_picosecond(
    tmp_path: Path,
    text: str,
    name: str,
    arrived_ps: list[int],
    prefill: list[int],
    decode: list[int],
    ids: list[list[int]] | None,
    is_compressed: bool,
) -> None:
    """The Azure rows lie 20.04 ms before and 1.0000001 s after midnight: 1.0200401 s apart."""
    path = write(tmp_path, text)
    if is_compressed:
        path.write_bytes(gzip.compress(text.encode()))
    trace = read_trace(path)
    made = trace.workload
    assert trace.format == name
    assert trace.has_arrivals == (name != "vidur_lengths")
    assert made.arrived_ps.tolist() == arrived_ps
    assert made.prefill_tokens.tolist() == prefill
    assert made.decode_tokens.tolist() == decode
    found = None if made.block_hashes is None else [made.block_hashes.of(i).tolist() for i in range(len(made))]
    assert found == ids
    assert made.skipped_rows == (1 if name == "burstgpt" else 0)


def test_rows_keep_their_ids_or_are_numbered_as_in_the_file(tmp_path: Path) -> None:
    assert read_trace(write(tmp_path, OWN)).workload.request_ids == ("a", "b")
    assert read_trace(write(tmp_path, BURSTGPT)).workload.request_ids == ("0", "2")


def test_time_zones_and_short_fractions_of_dates_are_understood(tmp_path: Path) -> None:
    text = (
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-10 00:00:00.009930+00:00,1,1\n"
        "2024-05-10T02:00:01+02:00,1,1\n2024-05-10 00:00:01.5Z,1,1\n"
    )
    assert read_trace(write(tmp_path, text)).workload.arrived_ps.tolist() == [0, 990_070_000_000, 1_490_070_000_000]


def test_columns_may_come_in_any_order_with_others_between_and_blank_lines_and_a_byte_order_mark(
    tmp_path: Path,
) -> None:
    text = "\ufeffdecode_tokens,note,arrived_at_s,prefill_tokens\n3,x,1,2\n\n4,y,2,5\n\n"
    made = read_trace(write(tmp_path, text)).workload
    assert contents(made) == (("0", "1"), [10**12, 2 * 10**12], [2, 5], [3, 4], None)


@pytest.mark.parametrize("text", [OWN, VIDUR, LENGTHS, AZURE, BURSTGPT])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_quoted_cells_and_headers_read_as_plain_ones(tmp_path: Path, text: str, mark: str) -> None:
    """As spreadsheets and R write them: every cell in quotes, with or without a byte order mark."""
    rows = [",".join(f'"{cell}"' for cell in line.split(",")) for line in text.splitlines()]
    quoted = read_trace(write(tmp_path, mark + "\r\n".join(rows), "quoted"))
    plain = read_trace(write(tmp_path, text, "plain"))
    assert quoted.format == plain.format
    assert contents(quoted.workload) == contents(plain.workload)


def test_a_quoted_cell_may_hold_commas_and_line_breaks(tmp_path: Path) -> None:
    """The refusal still names the line of the file: the broken cell takes lines 2 and 3."""
    text = '"prompt, cut",arrived_at_s,prefill_tokens,decode_tokens\n"a, ""b""\nc",1,10,2\n'
    assert read_trace(write(tmp_path, text)).workload.prefill_tokens.tolist() == [10]
    with pytest.raises(InputError, match="line 4: prefill_tokens: found 'x'"):
        read_trace(write(tmp_path, text + ",2,x,2\n"))


def test_columns_without_a_name_may_be_several(tmp_path: Path) -> None:
    text = "arrived_at_s,prefill_tokens,decode_tokens,,\n1,10,2,,\n"
    assert len(read_trace(write(tmp_path, text)).workload) == 1


HEAD = "arrived_at_s,prefill_tokens,decode_tokens\n1,10,2\n"
HASHED = "arrived_at_s,prefill_tokens,decode_tokens,hash_ids,hash_block_tokens\n1,10,2,5,16\n"
LINE = '{"timestamp": 1, "input_length": 10, "output_length": 2, "hash_ids": [1]}\n'


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (HEAD + "2,-10,2\n", "line 3: prefill_tokens: found '-10', expected a whole number of at least 1"),
        (HEAD + "2,0,2\n", "line 3: prefill_tokens: found '0', expected a whole number from 1 to 2147483647"),
        (HEAD + "2,10.5,2\n", "line 3: prefill_tokens: found '10.5', expected a whole number"),
        (HEAD + "2,10.0,2\n", "line 3: prefill_tokens: found '10.0', expected a whole number"),
        (HEAD + "2,nan,2\n", "line 3: prefill_tokens: found 'nan', expected a whole number"),
        (HEAD + "2,,2\n", "line 3: prefill_tokens: found '', expected a whole number"),
        (HEAD + "2,10,0\n", "line 3: decode_tokens: found 0, expected at least 1 (or skip_zero_output: true)"),
        (HEAD + "2,10,99999999999\n", "line 3: decode_tokens: found '99999999999', expected a whole number from"),
        (HEAD + "nan,10,2\n", "line 3: arrived_at_s: found 'nan', expected a number of seconds"),
        (HEAD + "inf,10,2\n", "line 3: arrived_at_s: found 'inf', expected a number of seconds"),
        (HEAD + "soon,10,2\n", "line 3: arrived_at_s: found 'soon', expected a number of seconds"),
        (HEAD + "1e40,10,2\n", "line 3: arrived_at_s: found '1e40', expected a number of seconds"),
        (HEAD + "99999999,10,2\n", "line 3: arrived_at_s: found '99999999', expected at most 4000000 s"),
        (
            HEAD + "4000000,10,2\n4000000.000000000001,10,2\n",
            "line 4: arrived_at_s: found '4000000.000000000001', expected at most 4000000 s after the start",
        ),
        (HEAD + "0.5,10,2\n", "line 3: arrived_at_s: found '0.5', expected a time no earlier than in the row before"),
        (
            "arrived_at_s,prefill_tokens,decode_tokens\n-1,10,2\n",
            "line 2: arrived_at_s: found '-1', expected no negative",
        ),
        (HEAD + "2,10\n", "line 3: found 2 cells, expected 3"),
        (HEAD + "2,10,2,7\n", "line 3: found 4 cells, expected 3"),
        (HEAD + '2,"10"0,2\n', "line 3: not CSV"),
        (HEAD + "\n\n2,10,x\n", "line 5: decode_tokens: found 'x'"),
        (HASHED + "2,40,2,5;6,16\n", "line 3: hash_ids: found 2 ids, expected 3 (40 tokens in blocks of 16)"),
        (HASHED + "2,40,2,,16\n", "line 3: hash_ids: found 0 ids, expected 3"),
        (HASHED + "2,10,2,-5,16\n", "line 3: hash_ids: found '-5', expected whole numbers joined by ';'"),
        (HASHED + "2,10,2,9223372036854775808,16\n", "line 3: hash_ids: found 9223372036854775808, expected ids below"),
        (HASHED + "2,10,2,5,32\n", "line 3: hash_block_tokens: found 32, expected 16 (as in the first row)"),
        (
            "request_id," + HEAD.replace("1,10", "a,1,10") + "a,2,1,1\n",
            "request_id: found 'a' twice, expected unique ids",
        ),
        ("arrived_at_s,prefill_tokens,decode_tokens\n", "found no request, expected at least 1"),
        (AZURE + "\n16.11.2023 18:15,1,1\n", "line 4: TIMESTAMP: found '16.11.2023 18:15', expected YYYY-MM-DD"),
        (AZURE + "\n2023-13-41 18:15:46,1,1\n", "line 4: TIMESTAMP: found '2023-13-41 18:15:46', expected YYYY-MM-DD"),
        (LINE + LINE.replace("10", "10.5"), "line 2: input_length: found 10.5, expected a whole number of at least 1"),
        (LINE + LINE.replace("10", "true"), "line 2: input_length: found True, expected a whole number"),
        (LINE + LINE.replace("10", "NaN"), "line 2: found NaN, which is no number"),
        (LINE + LINE.replace("10", "null"), "line 2: input_length: found None, expected a whole number"),
        (LINE + LINE.replace(": 1,", ": null,"), "line 2: timestamp: found None, expected a number of milliseconds"),
        (LINE + LINE.replace(": 1,", ": true,"), "line 2: timestamp: found True, expected a number of milliseconds"),
        (
            LINE + LINE.replace("[1]", "[1, 2]"),
            "line 2: hash_ids: found 2 ids, expected 1 (10 tokens in blocks of 512)",
        ),
        (LINE + LINE.replace("[1]", "[-1]"), "line 2: hash_ids: found [-1], expected a list of whole numbers"),
        (
            LINE + LINE.replace(', "hash_ids": [1]', ""),
            "line 2: hash_ids: found None, expected ids in every row, or in",
        ),
        (LINE.replace(', "hash_ids": [1]', "") + LINE, "line 2: hash_ids: found [1], expected ids in every row, or in"),
        (LINE + LINE.replace("output_length", "outputs"), "line 2: output_length: found no such key, expected a value"),
        (LINE + "[1, 2]\n", "line 2: found [1, 2], expected one JSON object"),
        (LINE + '{"timestamp": 1,\n', "line 2: found text that is not JSON"),
        (
            "arrived_at_s,prefill_tokens,decode_tokens, prefill_tokens\n1,10,2,99\n",
            "line 1: found 2 columns 'prefill_tokens', expected one",
        ),
        (
            '"arrived_at_s","prefill_tokens","decode_tokens","note","note"\n1,10,2,a,b\n',
            "line 1: found 2 columns 'note', expected one",
        ),
        (
            '"arrived_at_s,prefill_tokens\n',
            "line 1: found '\"arrived_at_s,prefill_tokens', expected the columns or keys",
        ),
        ("{oops\n", "line 1: found text that is not JSON"),
        ("{}\n", "line 1: found '{}', expected the columns or keys of a known format"),
        (
            "arrived_at_s,prefill_tokens\n0,10\n",
            "line 1: found 'arrived_at_s,prefill_tokens', expected decode_tokens, too (format csv), or",
        ),
        ("a,b,c\n1,2,3\n", "line 1: found 'a,b,c', expected the columns or keys of a known format (csv: arrived_at_s"),
        ("", "line 1: found nothing, expected a header or a JSON object"),
    ],
)
def test_what_is_wrong_is_said_in_one_line_with_file_line_and_field(tmp_path: Path, text: str, said: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(InputError) as refused:
        read_trace(path)
    message = str(refused.value)
    assert message.startswith(f"{path}: {said}")
    assert "\n" not in message
    assert "expected" in message


@given(st.binary(max_size=200) | st.text(max_size=120).map(lambda text: (HEAD + text).encode()))
def test_no_bytes_make_the_reader_fail_in_another_way(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "bytes"
    path.write_bytes(data)
    with contextlib.suppress(InputError):
        assert len(read_trace(path).workload) >= 1


def test_what_is_not_a_readable_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="absent: found no such file"):
        read_trace(tmp_path / "absent")
    with pytest.raises(InputError, match="found a folder"):
        read_trace(tmp_path)
    whole = gzip.compress(HEAD.encode() + b"2,10,2\n" * 9)
    (tmp_path / "cut.gz").write_bytes(whole[:-20])
    with pytest.raises(InputError, match="found a damaged gzip file"):
        read_trace(tmp_path / "cut.gz")
    (tmp_path / "latin").write_bytes(HEAD.encode() + b"\xff\xfe,1,1\n")
    with pytest.raises(InputError, match="found bytes that are not UTF-8"):
        read_trace(tmp_path / "latin")


def test_a_full_disk_is_said_and_leaves_the_earlier_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    path = write(tmp_path, VIDUR, "out.csv")
    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(OutputError, match=r"out\.csv: cannot be written \(No space left on device\)"):
        write_trace(workload([1]), path)
    assert [(each.name, each.read_text()) for each in tmp_path.iterdir()] == [("out.csv", VIDUR)]


def test_a_stated_format_must_have_its_columns(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"line 1: found 'arrived_at,.*' without TIMESTAMP"):
        read_trace(write(tmp_path, VIDUR), "azure")
    assert not read_trace(write(tmp_path, VIDUR), "vidur_lengths").has_arrivals


# Round trips --------------------------------------------------------------------------------------------------


@st.composite
def workloads(draw: st.DrawFn) -> Workload:
    """Any valid workload, with or without ids and blocks of its own."""
    n = draw(st.integers(1, 6))
    tokens = st.lists(st.integers(1, 3000), min_size=n, max_size=n)
    prefill, decode = np.array(draw(tokens)), np.array(draw(tokens))
    arrived = sorted(draw(st.lists(st.integers(0, 10**18), min_size=n, max_size=n)))
    names = draw(st.lists(st.text("ab,;\"'é 0", min_size=1, max_size=5), min_size=n, max_size=n, unique=True))
    ids = tuple(names) if draw(st.booleans()) else tuple(map(str, range(n)))
    hashes = None
    if draw(st.booleans()):
        block_tokens = draw(st.sampled_from([16, 100, 512]))
        offsets = np.concatenate(([0], np.cumsum(-(-prefill // block_tokens))))
        blocks = np.random.default_rng(draw(st.integers(0, 99))).integers(0, 2**63 - 1, offsets[-1])
        hashes = BlockHashes(offsets, blocks, block_tokens)
    return Workload(ids, np.array(arrived), prefill, decode, hashes)


@given(workloads(), st.sampled_from(["t.csv", "t.jsonl", "t.csv.gz", "t.jsonl.gz"]))
def test_a_workload_survives_writing_and_reading_unchanged(
    tmp_path_factory: pytest.TempPathFactory, made: Workload, name: str
) -> None:
    path = tmp_path_factory.getbasetemp() / name
    write_trace(made, path)
    assert contents(read_trace(path).workload) == contents(made)


@pytest.mark.parametrize("text", [OWN, VIDUR, AZURE, BURSTGPT, MOONCAKE, BAILIAN])
@pytest.mark.parametrize("name", ["out.csv", "out.jsonl.gz"])
def test_each_format_converts_without_loss(tmp_path: Path, text: str, name: str) -> None:
    read = read_trace(write(tmp_path, text)).workload
    write_trace(read, tmp_path / name)
    assert contents(read_trace(tmp_path / name).workload) == contents(read)


def test_the_vidur_format_keeps_times_and_lengths(tmp_path: Path) -> None:
    write_trace(read_trace(write(tmp_path, VIDUR)).workload, tmp_path / "out.csv", "vidur")
    assert (tmp_path / "out.csv").read_text() == VIDUR


def test_mooncake_lines_are_written_as_mooncake_writes_them(tmp_path: Path) -> None:
    write_trace(read_trace(write(tmp_path, MOONCAKE)).workload, tmp_path / "out.jsonl")
    assert (tmp_path / "out.jsonl").read_text() == MOONCAKE


def test_a_file_that_cannot_be_written_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "out.csv").mkdir()
    with pytest.raises(InputError, match=r"out\.csv: found a folder"):
        write_trace(workload([1]), tmp_path / "out.csv")
    assert [path.name for path in tmp_path.iterdir()] == ["out.csv"]
    with pytest.raises(InputError, match=r"\.csv: cannot be written \(File name too long\)"):
        write_trace(workload([1]), tmp_path / ("a" * 300 + ".csv"))
    assert [path.name for path in tmp_path.iterdir()] == ["out.csv"]
    with pytest.raises(InputError, match=r"found suffix '\.txt', expected \.csv or \.jsonl"):
        write_trace(workload([1]), tmp_path / "out.txt")


# Published traces ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "kind", "requests", "span_s", "prefill_mean", "decode_mean", "longest"),
    [
        ("AzureLLMInferenceTrace_conv.csv", "azure", 19_366, 3501.72, 1154.7, 211.1, (14_050, 1000)),
        ("AzureLLMInferenceTrace_code.csv", "azure", 8_819, 3435.95, 2047.8, 27.9, (7437, 1899)),
        ("mooncake_conversation_trace.jsonl.gz", "mooncake", 12_031, 3537.0, 12_035.1, 342.6, (126_195, 2000)),
        ("mooncake_synthetic_trace.jsonl.gz", "mooncake", 3_993, 1022.0, 15_325.5, 149.1, (191_378, 893)),
    ],
)
def test_published_traces_read_to_their_published_statistics(
    name: str,
    kind: TraceFormat,
    requests: int,
    span_s: float,
    prefill_mean: float,
    decode_mean: float,
    longest: tuple[int, int],
) -> None:
    trace = read_trace(real_trace(name))
    found = describe_workload(trace.workload)
    assert (trace.format, found.requests) == (kind, requests)
    assert found.span_s == pytest.approx(span_s, abs=0.03)
    assert found.prefill_tokens.mean == pytest.approx(prefill_mean, abs=0.1)
    assert found.decode_tokens.mean == pytest.approx(decode_mean, abs=0.1)
    assert (found.prefill_tokens.max, found.decode_tokens.max) == longest
    assert trace.workload.arrived_ps[0] == 0


@pytest.mark.parametrize(("kind", "share", "blocks"), [("conversation", 0.366, 288_500), ("synthetic", 0.640, 121_877)])
def test_a_perfect_cache_holds_the_known_share_of_the_mooncake_blocks(kind: str, share: float, blocks: int) -> None:
    made = read_trace(real_trace(f"mooncake_{kind}_trace.jsonl.gz")).workload
    hashes = made.block_hashes
    assert hashes is not None
    assert len(hashes.ids) == blocks
    assert perfect_cache_hit_share(made, hashes) == pytest.approx(share, abs=0.0006)


def test_a_mooncake_trace_survives_csv_byte_for_byte(tmp_path: Path) -> None:
    path = real_trace("mooncake_conversation_trace.jsonl.gz")
    write_trace(read_trace(path).workload, tmp_path / "t.csv")
    write_trace(read_trace(tmp_path / "t.csv").workload, tmp_path / "t.jsonl")
    assert (tmp_path / "t.jsonl").read_bytes() == gzip.decompress(path.read_bytes())


# Statistics ---------------------------------------------------------------------------------------------------


def test_the_perfect_cache_counts_leading_blocks_only() -> None:
    """Of [1 2 3], [1 2 4], [5 2 3], [1 2 4 6]: 0 + 2 + 0 + 3 of 13 blocks; block 2 of the third prompt follows another
    block than before and is no prefix."""
    made = workload([1536, 1536, 1536, 2048], [[1, 2, 3], [1, 2, 4], [5, 2, 3], [1, 2, 4, 6]])
    assert made.block_hashes is not None
    assert perfect_cache_hit_share(made, made.block_hashes) == 5 / 13


def test_statistics_of_four_requests_by_hand() -> None:
    """Gaps of 1 s, 1 s and 4 s: mean 2 s, so 0.5 requests/s; standard deviation √2 s, so a CV of 0.7071."""
    made = Workload(
        ("a", "b", "c", "d"), np.array([0, 1, 2, 6]) * 10**12, np.array([10, 20, 30, 40]), np.array([1, 1, 1, 5])
    )
    found = describe_workload(made)
    assert (found.span_s, found.rate_qps) == (6.0, 0.5)
    assert found.gap_cv == pytest.approx(0.70711, abs=1e-5)
    assert (found.prefill_tokens.mean, found.prefill_tokens.p50, found.prefill_tokens.max) == (25, 25, 40)
    assert (found.decode_tokens.mean, found.decode_tokens.p90) == (2, pytest.approx(3.8))
    assert found.perfect_cache_hit_share is None


def test_requests_that_arrive_at_once_have_no_rate() -> None:
    found = describe_workload(load(synthetic(3, arrivals={"kind": "static"})))
    assert (found.rate_qps, found.gap_cv, found.span_s) == (None, None, 0.0)
