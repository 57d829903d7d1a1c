#!/usr/bin/env python3
"""Measures what the client of ``vllm bench serve`` takes for a token: the processor time of its one process.

    python scripts/measure_bench_client.py VLLM --streams 512 2048 4096

VLLM is the folder of an installed or unpacked vLLM, of whose benchmarks the function is taken that sends a request to
``/v1/completions`` and reads its server-sent events; aiohttp, regex and tqdm have to be there. Another process answers
each of so many open requests with one event per step, all as vLLM's server writes them; no engine runs. Prints, for
each number of streams, the processor time of an event and how many of them one processor can take in a second.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import json
import multiprocessing
import sys
import time
from pathlib import Path
from typing import Any

import aiohttp

PORT = 8124
TOKENS = 50
STEP_S = 0.2
ANSWER = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
CHOICE = {"index": 0, "text": " word", "logprobs": None, "finish_reason": None, "stop_reason": None}
COMMON = {"id": "cmpl-0123456789abcdef0123456789abcdef", "object": "text_completion", "created": 1700000000}
"""Fields of vLLM's events."""


def event(content: str) -> bytes:
    """A server-sent event in a chunk of HTTP/1.1."""
    text = f"data: {content}\n\n".encode()
    return b"%x\r\n%s\r\n" % (len(text), text)


TOKEN = event(json.dumps({**COMMON, "model": "deepseek-v3", "choices": [CHOICE], "usage": None}))
USAGE = {"prompt_tokens": 1, "total_tokens": TOKENS + 1, "completion_tokens": TOKENS}
END = event(json.dumps({**COMMON, "choices": [], "usage": USAGE})) + event("[DONE]") + b"0\r\n\r\n"


class Stream(asyncio.Protocol):
    """A connection that gets events once its request has come."""

    def __init__(self, waiting: list[Stream]) -> None:
        self._waiting = waiting

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        if data.endswith(b"}"):
            self.transport.write(ANSWER)
            self._waiting.append(self)


async def serve(streams: int) -> None:
    """All requests' events, once that many are open."""
    waiting: list[Stream] = []
    loop = asyncio.get_running_loop()
    await loop.create_server(lambda: Stream(waiting), "127.0.0.1", PORT, backlog=8192)
    while len(waiting) < streams:
        await asyncio.sleep(0.05)
    for token in range(TOKENS):
        began = loop.time()
        for stream in waiting:
            stream.transport.write(TOKEN if token < TOKENS - 1 else TOKEN + END)
        await asyncio.sleep(max(0.0, STEP_S - (loop.time() - began)))


def run_server(streams: int) -> None:
    asyncio.run(serve(streams))


async def receive(functions: Any, streams: int) -> tuple[int, float]:
    """Events that were read, and the processor time of this process for them [s]."""
    connector = aiohttp.TCPConnector(limit=streams, limit_per_host=streams)
    async with aiohttp.ClientSession(connector=connector) as session:
        request = functions.RequestFuncInput(
            prompt="a",
            api_url=f"http://127.0.0.1:{PORT}/v1/completions",
            prompt_len=1,
            output_len=TOKENS,
            model="deepseek-v3",
        )
        began = time.process_time()
        calls = (functions.async_request_openai_completions(request, session) for _ in range(streams))
        outputs = await asyncio.gather(*calls)
        taken_s = time.process_time() - began
    failed = [output.error for output in outputs if not output.success]
    if failed:
        raise SystemExit(f"{len(failed)} of {streams} requests failed: {failed[0]}")
    return sum(len(output.itl) + 1 for output in outputs), taken_s


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("vllm", type=Path)
    parser.add_argument("--streams", type=int, nargs="+", default=[512, 2048, 4096])
    options = parser.parse_args()
    sys.path.insert(0, str(options.vllm / "benchmarks" / "lib"))
    functions = importlib.import_module("endpoint_request_func")
    for streams in options.streams:
        server = multiprocessing.Process(target=run_server, args=(streams,), daemon=True)
        server.start()
        time.sleep(1.0)
        events, taken_s = asyncio.run(receive(functions, streams))
        server.join()
        print(f"{streams:5d} streams: {taken_s / events * 1e6:5.1f} us an event, {events / taken_s:7,.0f} a second")
    return 0


if __name__ == "__main__":
    sys.exit(main())
