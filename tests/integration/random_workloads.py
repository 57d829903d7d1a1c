"""Random workload sections: every kind of arrivals, lengths and prefixes, traces in every format, and mixes."""

from __future__ import annotations

import json
import random
from typing import Any, Final

MOST_OUTPUT_TOKENS: Final = 50


def random_workload(
    choose: random.Random, files: dict[str, str], most_requests: int, longest_prompt: int
) -> dict[str, Any]:
    """A workload section; the traces that it names are put into ``files``."""
    requests = choose.randint(20, most_requests)
    match choose.choices(("synthetic", "trace", "mix"), (5, 2, 1))[0]:
        case "synthetic":
            return _synthetic(choose, requests, longest_prompt)
        case "trace":
            return _trace(choose, files, requests, longest_prompt)
        case _:
            half = requests // 2
            drawn, read = _synthetic(choose, half, longest_prompt), _trace(choose, files, half, longest_prompt)
            if "prefixes" in drawn:  # parts have hash blocks of one size
                drawn["prefixes"]["hash_block_tokens"] = 16 if "chat_id" in files[read["path"]] else 512
            return {"kind": "mix", "parts": {"drawn": drawn, "read": read}}


def _synthetic(choose: random.Random, requests: int, longest_prompt: int) -> dict[str, Any]:
    section = {
        "kind": "synthetic",
        "requests": requests,
        "arrivals": _arrivals(choose),
        "lengths": _lengths(choose, longest_prompt),
    }
    if choose.random() < 0.35:
        section["prefixes"] = _prefixes(choose, longest_prompt)
        section["lengths"] = {"kind": "uniform", "min": 40, "max": 300, "prefill_to_decode": 4}
    return section


def _arrivals(choose: random.Random) -> dict[str, Any]:
    qps = choose.choice((5, 20, 80))
    match choose.choices(("poisson", "gamma", "constant", "static", "ramp"), (4, 2, 2, 1, 1))[0]:
        case "gamma":
            return {"kind": "gamma", "qps": qps, "cv": choose.choice((0.3, 3))}
        case "static":
            return {"kind": "static"}
        case "ramp":
            shape = choose.choice(("linear", "exponential"))
            return {"kind": "ramp", "from_qps": qps, "to_qps": choose.choice((qps / 4, qps * 4)), "shape": shape}
        case kind:
            return {"kind": kind, "qps": qps}


def _lengths(choose: random.Random, longest: int) -> dict[str, Any]:
    match choose.choice(("fixed", "uniform", "zipf", "lognormal", "quantiles")):
        case "fixed":
            return {
                "kind": "fixed",
                "prefill": choose.choice((1, 17, longest // 2)),
                "decode": choose.choice((1, 2, 30)),
            }
        case "uniform":
            return {"kind": "uniform", "min": 20, "max": longest, "prefill_to_decode": choose.choice((20, 60))}
        case "zipf":
            ratio, scramble = choose.choice((20, 60)), choose.random() < 0.5
            return {"kind": "zipf", "min": 50, "max": longest, "theta": 0.6, "scramble": scramble} | {
                "prefill_to_decode": ratio
            }
        case "lognormal":
            prefill = {"median": longest // 6, "p90": longest // 2, "max": longest}
            return {"kind": "lognormal", "prefill": prefill, "decode": {"mean": 12, "cv": 1, "max": MOST_OUTPUT_TOKENS}}
        case _:
            prefill = {"quantiles": [[0, 8], [0.5, longest // 5], [1, longest]]}
            return {
                "kind": "quantiles",
                "prefill": prefill,
                "decode": {"quantiles": [[0, 1], [0.9, 20], [1, MOST_OUTPUT_TOKENS]]},
            }


def _prefixes(choose: random.Random, longest: int) -> dict[str, Any]:
    return {
        "system_prompts": choose.randint(1, 3),
        "system_tokens": choose.choice((longest // 20, longest // 4)),
        "popularity_theta": choose.choice((0, 1)),
        "turns": choose.choice((1, 3)),
        "think_time_s": choose.choice((0, 0.3)),
        "max_prompt_tokens": longest,
        "hash_block_tokens": choose.choice((64, 512)),
    }


def _trace(choose: random.Random, files: dict[str, str], requests: int, longest: int) -> dict[str, Any]:
    """A trace of twice the requests that are taken from it."""
    layout = choose.choice(("csv", "vidur", "vidur_lengths", "azure", "burstgpt", "mooncake", "qwen_bailian"))
    name = f"trace-{len(files)}.{'jsonl' if layout in ('mooncake', 'qwen_bailian') else 'csv'}"
    files[name] = _trace_text(choose, layout, 2 * requests, longest)
    section: dict[str, Any] = {"kind": "trace", "path": name, "requests": requests, "max_tokens": longest}
    section["trim"] = choose.choice(("prefill", "proportional"))
    if layout == "vidur_lengths" or choose.random() < 0.3:
        section["arrivals"] = _arrivals(choose)
    else:
        section |= {"time_scale": choose.choice((0.5, 1)), "jitter_s": choose.choice((0, 0.1))}
    return section | {"prefill_scale": choose.choice((0.5, 1)), "decode_scale": choose.choice((1, 1.5))}


def _trace_text(choose: random.Random, layout: str, rows: int, longest: int) -> str:
    """``rows`` requests, some 20 per second, half of which share their first blocks with others."""
    at_s, lines = 0.0, []
    for row in range(rows):
        at_s += choose.expovariate(20)
        prompt, output = choose.randint(1, longest), choose.randint(1, 40)
        match layout:
            case "csv":
                lines.append(f"{at_s:.6f},{prompt},{output}")
            case "vidur":
                lines.append(f"{at_s:.3f},{prompt},{output}")
            case "vidur_lengths":
                lines.append(f"{prompt},{output}")
            case "azure":
                lines.append(f"2023-11-16 18:17:{at_s:010.7f},{prompt},{output}")
            case "burstgpt":
                lines.append(f"{at_s:.0f},{prompt},{output}")
            case _:
                tokens = 512 if layout == "mooncake" else 16
                own = [
                    block if block < 2 + row % 2 else 10_000 * (row + 1) + block
                    for block in range(-(-prompt // tokens))
                ]
                at = {"timestamp": int(1000 * at_s) if layout == "mooncake" else round(at_s, 3)}
                chat = {} if layout == "mooncake" else {"chat_id": row}
                lines.append(
                    json.dumps({**chat, **at, "input_length": prompt, "output_length": output, "hash_ids": own})
                )
    header = {
        "csv": "arrived_at_s,prefill_tokens,decode_tokens",
        "vidur": "arrived_at,num_prefill_tokens,num_decode_tokens",
        "vidur_lengths": "num_prefill_tokens,num_decode_tokens",
        "azure": "TIMESTAMP,ContextTokens,GeneratedTokens",
        "burstgpt": "Timestamp,Request tokens,Response tokens",
    }.get(layout)
    return "\n".join([*([header] if header else []), *lines]) + "\n"
