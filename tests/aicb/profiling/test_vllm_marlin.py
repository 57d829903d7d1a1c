"""Weights of vLLM's Marlin kernel, arranged without a GPU."""

import pytest

torch = pytest.importorskip("torch")

from aicb.profiling.libraries.vllm_marlin import arranged, ordered, row_tile  # noqa: E402


@pytest.mark.parametrize(
    ("row", "column", "word", "place"),
    [(0, 0, 0, 0), (8, 0, 0, 1), (0, 8, 0, 2), (8, 8, 0, 3), (1, 0, 0, 4), (9, 8, 0, 7), (2, 0, 4, 0), (0, 1, 16, 0)],
)
def test_a_code_goes_to_the_word_of_its_thread(row: int, column: int, word: int, place: int) -> None:
    """Thread 4c + t has rows 2t, 2t + 1, 2t + 8, 2t + 9 of columns c and c + 8: even places of a word first."""
    codes = torch.zeros(64, 16, dtype=torch.uint8)
    codes[column, row] = 15
    words = arranged(codes[:, ::2] | (codes[:, 1::2] << 4))
    assert words.shape == (1, 128)
    places = (words[0, :, None].long() >> (4 * torch.arange(8))) & 15
    assert places.nonzero().tolist() == [[word, place]]


def test_tiles_of_columns_lie_in_words_of_four() -> None:
    codes = torch.zeros(128, 32, dtype=torch.uint8)
    codes[16, 0], codes[64, 0], codes[0, 16] = 1, 2, 3
    words = arranged(codes[:, ::2] | (codes[:, 1::2] << 4))
    assert words.nonzero().tolist() == [[0, 1], [0, 128], [1, 0]]


def test_every_scale_keeps_its_block_of_rows() -> None:
    exponents = torch.arange(128, dtype=torch.uint8)[:, None] + torch.zeros(128, 2, dtype=torch.uint8)
    exponents[:, 1] += 128
    found = ordered(exponents).view(torch.uint8)
    assert found.shape == (2, 128)
    assert found[0].sort().values.tolist() == list(range(128))
    assert found[0, :8].tolist() == [0, 16, 8, 24, 32, 48, 40, 56]
    assert (found[1] - found[0] == 128).all()


@pytest.mark.parametrize(("pairs", "tile"), [(4, 8), (230, 8), (231, 16), (1024, 48), (1843, 64), (65536, 64)])
def test_the_row_tile_follows_from_the_mean_rows(pairs: int, tile: int) -> None:
    assert row_tile(pairs, 32) == tile
