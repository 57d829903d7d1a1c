"""Measures what vLLM's frontend takes: HTTP, tokeniser, IPC to the engine and back, detokeniser, server-sent events.

    python scripts/measure_frontend.py MODEL TEXT OUT [--api-servers 1] [--only inbound burst decode load]

MODEL is a folder with ``config.json`` and the files of a tokeniser, TEXT a plain text that prompts are cut from. It
starts ``vllm serve`` (written for 0.24.0) with everything of its own but the GPU (``scripts/frontend_executor.py``),
and clients in processes of their own on the same machine, over HTTP connections that are open already. Neither a GPU
nor weights are needed. OUT gets ``requests.csv``: of each request the milliseconds *inbound* (sent by the client to
received by the engine's process) and *outbound* of its first, last and mean token (sampled to seen by the client), and
``cpu.csv``: the CPU time of the server's threads in each measurement.
"""

from __future__ import annotations

import argparse
import asyncio
import csv
import json
import multiprocessing
import os
import random
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer

PORT = 8123
CLIENTS = 8
"""Processes that send."""
LEAD_S = 1.5
"""From the plan of a measurement to its first request: connections are opened meanwhile."""
REQUEST_COLUMNS = (
    "number",
    "measurement",
    "concurrency",
    "endpoint",
    "prompt_tokens",
    "output_tokens",
    "sent_s",
    "inbound_ms",
    "first_sampled_ms",
    "outbound_first_ms",
    "outbound_mean_ms",
    "outbound_last_ms",
)
CPU_COLUMNS = (
    "number",
    "measurement",
    "concurrency",
    "prompt_tokens",
    "process",
    "name",
    "thread",
    "cpu_s",
    "wall_s",
)
ENDPOINTS = {"completions": "/v1/completions", "chat": "/v1/chat/completions"}


@dataclass(frozen=True)
class Ask:
    """One request of a measurement."""

    name: str
    endpoint: str
    prompt_tokens: int
    output_tokens: int
    at_s: float
    """After the beginning of the measurement."""


@dataclass(frozen=True)
class Measurement:
    """Requests that are sent together."""

    name: str
    concurrency: int
    asks: list[Ask]


@dataclass(frozen=True)
class Seen:
    """Stamps of one request at its client."""

    name: str
    sent_s: float
    chunks_s: list[float]
    """When each event of the answer came."""


# What is measured.


def plans(only: list[str], repeats: int, rates: list[float]) -> Iterator[Measurement]:
    """All measurements, after one that warms up."""
    yield _together("warm-up", "completions", 16, 512, 16)
    if "inbound" in only:
        for endpoint in ENDPOINTS:
            for prompt_tokens in (16, 128, 512, 1024, 2048, 4096, 8192, 16384, 32000):
                asks = [Ask("", endpoint, prompt_tokens, 8, 0.4 * number) for number in range(repeats)]
                yield Measurement("inbound", 1, asks)
    if "burst" in only:
        for prompt_tokens in (128, 1024, 4096):
            for requests in (4, 16, 64, 256):
                for _ in range(2):
                    yield _together("burst", "completions", requests, prompt_tokens, 16)
    if "decode" in only:
        for requests in (1, 8, 32, 64, 128, 256):
            yield _together("decode", "completions", requests, 128, 200)
        yield _together("decode", "chat", 64, 128, 200)
    if "load" in only:
        for rate in rates:
            yield _poisson(rate)


def _together(name: str, endpoint: str, requests: int, prompt_tokens: int, output_tokens: int) -> Measurement:
    return Measurement(name, requests, [Ask("", endpoint, prompt_tokens, output_tokens, 0.0)] * requests)


def _poisson(rate: float, duration_s: float = 20.0) -> Measurement:
    """Poisson arrivals, lengths log-normal with medians of 1,000 and 150 tokens."""
    draw, asks, at_s = random.Random(round(rate)), [], 0.0
    while (at_s := at_s + draw.expovariate(rate)) < duration_s:
        prompt_tokens = min(max(round(1000 * draw.lognormvariate(0, 1)), 16), 16384)
        output_tokens = min(max(round(150 * draw.lognormvariate(0, 0.7)), 8), 600)
        asks.append(Ask("", "completions", prompt_tokens, output_tokens, at_s))
    return Measurement("load", round(rate), asks)


# Clients.


class Prompts:
    """Texts of so many tokens."""

    def __init__(self, model: Path, text: Path) -> None:
        self._tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
        self.tokens: list[int] = self._tokenizer.encode(text.read_text(encoding="utf-8")).ids

    def cut(self, tokens: int, draw: random.Random) -> str:
        """Text of about so many tokens, from anywhere."""
        begin = draw.randrange(len(self.tokens))
        ids = (self.tokens[begin:] + self.tokens * (1 + tokens // len(self.tokens)))[:tokens]
        return str(self._tokenizer.decode(ids))


def _body(ask: Ask, text: str) -> bytes:
    content = {"prompt": text} if ask.endpoint == "completions" else {"messages": [{"role": "user", "content": text}]}
    asked = {"model": "measured", "stream": True, "max_tokens": ask.output_tokens, "ignore_eos": True, "temperature": 0}
    payload = json.dumps({**asked, **content}).encode()
    head = f"POST {ENDPOINTS[ask.endpoint]} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return f"{head}X-Request-Id: {ask.name}\r\nContent-Length: {len(payload)}\r\n\r\n".encode() + payload


async def _send(ask: Ask, body: bytes, begin_s: float) -> Seen:
    await asyncio.sleep(max(0.0, begin_s + ask.at_s - 0.5 - time.monotonic()))
    reader, writer = await asyncio.open_connection("127.0.0.1", PORT, limit=1 << 22)
    await asyncio.sleep(max(0.0, begin_s + ask.at_s - time.monotonic()))
    sent_s = time.monotonic()
    writer.write(body)
    chunks_s: list[float] = []
    while part := await reader.read(1 << 16):
        chunks_s += [time.monotonic()] * (part.count(b"data: ") - part.count(b"data: [DONE]"))
        if b"data: [DONE]" in part:
            break
    writer.close()
    return Seen(ask.name, sent_s, chunks_s)


def _client(asks: list[Ask], bodies: list[bytes], begin_s: float, results: multiprocessing.Queue[list[Seen]]) -> None:
    async def all_of_them() -> list[Seen]:
        return await asyncio.gather(*(_send(ask, body, begin_s) for ask, body in zip(asks, bodies, strict=True)))

    results.put(asyncio.run(all_of_them()))


def send(asks: list[Ask], prompts: Prompts) -> list[Seen]:
    """Sends the requests of a measurement from several processes."""
    draw = random.Random(len(asks))
    bodies = [_body(ask, prompts.cut(ask.prompt_tokens, draw)) for ask in asks]
    results: multiprocessing.Queue[list[Seen]] = multiprocessing.Queue()
    begin_s = time.monotonic() + LEAD_S
    shares = [slice(client, None, CLIENTS) for client in range(min(CLIENTS, len(asks)))]
    workers = [
        multiprocessing.Process(target=_client, args=(asks[share], bodies[share], begin_s, results)) for share in shares
    ]
    for worker in workers:
        worker.start()
    seen = [each for _ in workers for each in results.get()]
    for worker in workers:
        worker.join()
    return seen


# The server.


def serve(model: Path, out: Path, arguments: argparse.Namespace) -> subprocess.Popen[bytes]:
    """Starts the server, and waits until it answers."""
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]),
        "PRETENDED_STEP_S": str(arguments.step_ms / 1e3),
        "PRETENDED_PREFILL_TOKEN_S": str(arguments.prefill_token_us / 1e6),
        "PRETENDED_TOKENS": str(out / "tokens.json"),
        "PRETENDED_STAMPS": str(out / "stamps.txt"),
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    options = {
        "served-model-name": "measured",
        "port": PORT,
        "distributed-executor-backend": "frontend_executor.PretendingExecutor",
        "max-num-seqs": 256,
        "max-num-batched-tokens": 8192,
        "max-model-len": 40960,
        "api-server-count": arguments.api_servers,
    }
    command = [sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", str(model)]
    command += [text for name, value in options.items() for text in (f"--{name}", str(value))]
    command += ["--no-enable-prefix-caching", "--enable-request-id-headers", "--disable-uvicorn-access-log"]
    with (out / "server.log").open("wb") as log:
        server = subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT)
    until_s = time.monotonic() + 240
    while time.monotonic() < until_s and server.poll() is None:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{PORT}/health", timeout=2).close()
            return server
        except (urllib.error.URLError, OSError):
            time.sleep(0.5)
    raise SystemExit(f"the server did not come up: see {out / 'server.log'}")


def cpu_s(server: subprocess.Popen[bytes]) -> dict[tuple[int, str, int], float]:
    """CPU seconds so far of every thread of the server's processes, by (process, its name, thread)."""
    parents: dict[int, int] = {}
    names: dict[int, str] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            name, rest = path.read_text().partition("(")[2].rsplit(")", 1)
        except OSError:
            continue
        parents[int(path.parent.name)], names[int(path.parent.name)] = int(rest.split()[1]), name
    found = {}
    for process in parents:
        ancestor = process
        while ancestor not in (server.pid, 0, 1):
            ancestor = parents.get(ancestor, 0)
        if ancestor != server.pid:
            continue
        for path in Path(f"/proc/{process}/task").glob("*/stat"):
            fields = path.read_text().rsplit(")", 1)[1].split()
            ticks = int(fields[11]) + int(fields[12])
            found[process, names[process], int(path.parent.name)] = ticks / os.sysconf("SC_CLK_TCK")
    return found


def stamps(path: Path) -> tuple[dict[str, float], dict[str, list[float]]]:
    """When each request came in, and when each of its tokens was sampled; by its name."""
    came: dict[str, float] = {}
    sampled: defaultdict[str, list[float]] = defaultdict(list)

    def name_of(request_id: str) -> str:
        return request_id[request_id.index("ask") :].split("-")[0]

    for line in path.read_text().splitlines():
        kind, *rest = line.split()
        if kind == "in":
            came[name_of(rest[0])] = float(rest[1])
        else:
            for request_id in rest[1:]:
                sampled[name_of(request_id)].append(float(rest[0]))
    return came, sampled


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("text", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--api-servers", type=int, default=1)
    parser.add_argument("--only", nargs="*", default=["inbound", "burst", "decode", "load"])
    parser.add_argument("--repeats", type=int, default=12, help="of each length in `inbound`")
    parser.add_argument("--rates", nargs="*", type=float, default=[4.0, 16.0, 32.0], help="requests/s of `load`")
    parser.add_argument("--step-ms", type=float, default=10.0)
    parser.add_argument("--prefill-token-us", type=float, default=0.0)
    arguments = parser.parse_args()
    out: Path = arguments.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    (out / "stamps.txt").unlink(missing_ok=True)
    prompts = Prompts(arguments.model, arguments.text)
    (out / "tokens.json").write_text(json.dumps(prompts.tokens[:100_000]))
    server = serve(arguments.model, out, arguments)
    try:
        measure(server, prompts, out, arguments)
    finally:
        server.terminate()
        server.wait(30)


def measure(server: subprocess.Popen[bytes], prompts: Prompts, out: Path, arguments: argparse.Namespace) -> None:
    """Takes all measurements and writes the tables."""
    done: list[tuple[Measurement, list[Ask], dict[str, Seen]]] = []
    cpu: list[list[object]] = []
    for number, plan in enumerate(plans(arguments.only, arguments.repeats, arguments.rates)):
        asks = [
            Ask(f"ask{number}x{row}", ask.endpoint, ask.prompt_tokens, ask.output_tokens, ask.at_s)
            for row, ask in enumerate(plan.asks)
        ]
        before, began_s = cpu_s(server), time.monotonic()
        seen = {each.name: each for each in send(asks, prompts)}
        after, took_s = cpu_s(server), time.monotonic() - began_s - LEAD_S
        done.append((plan, asks, seen))
        for thread, total_s in after.items():
            if (used_s := total_s - before.get(thread, 0.0)) >= 0.02:
                cpu.append(
                    [
                        number,
                        plan.name,
                        plan.concurrency,
                        asks[0].prompt_tokens,
                        *thread,
                        f"{used_s:.2f}",
                        f"{took_s:.2f}",
                    ]
                )
        print(
            number, plan.name, plan.concurrency, asks[0].endpoint, asks[0].prompt_tokens, f"{took_s:.1f} s", flush=True
        )
    time.sleep(1.0)
    for each in range(3):  # what the engine's process has not flushed yet goes with further stamps
        send([Ask(f"ask9999x{each}", "completions", 16, 2, 0.0)], prompts)
    write(out, done, cpu)


def write(out: Path, done: list[tuple[Measurement, list[Ask], dict[str, Seen]]], cpu: list[list[object]]) -> None:
    came, sampled = stamps(out / "stamps.txt")
    with (out / "requests.csv").open("w", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(REQUEST_COLUMNS)
        for number, (plan, asks, all_seen) in enumerate(done):
            for ask in asks:
                seen, tokens_s = all_seen[ask.name], sampled[ask.name]
                if not seen.chunks_s or not tokens_s:
                    continue
                pairs = list(zip(tokens_s, seen.chunks_s[-len(tokens_s) :], strict=False))
                same = len(seen.chunks_s) - len(tokens_s) in (0, 1)
                delays = [got - made for made, got in pairs] if same else []
                values = [
                    came[ask.name] - seen.sent_s,
                    tokens_s[0] - seen.sent_s,
                    seen.chunks_s[0] - tokens_s[0],
                    sum(delays) / len(delays) if delays else float("nan"),
                    seen.chunks_s[-1] - tokens_s[-1],
                ]
                row = [number, plan.name, plan.concurrency, ask.endpoint, ask.prompt_tokens, ask.output_tokens]
                table.writerow([*row, f"{seen.sent_s:.6f}", *(f"{1e3 * value:.3f}" for value in values)])
    with (out / "cpu.csv").open("w", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(CPU_COLUMNS)
        table.writerows(cpu)


if __name__ == "__main__":
    main()
