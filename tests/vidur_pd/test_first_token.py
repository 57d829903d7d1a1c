"""The first-token rule as a value: three rules, and what each says of one request."""

import pytest

from vidur_pd.kv.transfer.first_token import FIRST_TOKEN_RULES
from vidur_pd.workload.request import Request


def request(output_tokens: int) -> Request:
    """A prompt of 100 tokens."""
    return Request(0, "r0", 100, output_tokens, 0)


@pytest.mark.parametrize(
    ("name", "after_prefill", "after_transfer", "computed_tokens"),
    [
        ("prefill", True, False, 100),
        ("decode_after_transfer", False, True, 100),
        ("decode_recompute", False, False, 99),
    ],
)
def test_a_rule_says_when_the_token_of_the_prefill_is_delivered(
    name: str, after_prefill: bool, after_transfer: bool, computed_tokens: int
) -> None:
    rule = FIRST_TOKEN_RULES[name]
    assert rule.is_delivered_after_prefill is after_prefill
    assert rule.is_delivered_after_transfer is after_transfer
    assert rule.computed_tokens(request(5)) == computed_tokens


def test_a_single_token_travels_only_where_the_decode_side_computes_it() -> None:
    travels = {
        name: [rule.must_travel(request(output)) for output in (1, 2)] for name, rule in FIRST_TOKEN_RULES.items()
    }
    assert travels == {
        "prefill": [False, True],
        "decode_after_transfer": [False, True],
        "decode_recompute": [True, True],
    }


@pytest.mark.parametrize("name", FIRST_TOKEN_RULES)
def test_a_user_has_no_token_that_waits_for_kv_which_is_lost(name: str) -> None:
    """The prefill instance has sampled none before the end of the prompt, so nothing is taken away then."""
    rule, lost = FIRST_TOKEN_RULES[name], request(5)
    assert rule.delivered_tokens(lost, is_prefilled=False) == lost.generated_tokens
    withheld = int(name != "prefill")
    assert rule.delivered_tokens(lost, is_prefilled=True) == lost.generated_tokens - withheld
