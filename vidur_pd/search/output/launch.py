"""What to launch for a configuration, as text: ``vllm serve`` or SGLang per pool, and a Dynamo graph.

Options are those of vLLM 0.24 (``vllm serve --help``), SGLang 0.5.23 (``sglang/srt/server_args.py``) and Dynamo's
``DynamoGraphDeployment``. Addresses, ports, images and the network's environment are the cluster's own and left out.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

from aicb import load_model
from boundary.yaml_text import dump_yaml
from vidur_pd.config import EngineConfig, PoolConfig, SimulationConfig
from vidur_pd.config.sglang_defaults import has_prompt_graphs
from vidur_pd.execution.instances.placement import partition_of
from vidur_pd.simulation.pool_checks import cut_blocks

VLLM_ROLES = {"prefill": "kv_producer", "decode": "kv_consumer", "mixed": "kv_both"}


def launch_text(config: SimulationConfig) -> str:
    """Commands for every pool, and the graph where the engine is vLLM; a line for what cannot be said in them."""
    parts = [f"# {model_name(config)}: what the simulated deployment would be launched with."]
    if model_name(config).endswith(".json"):
        parts.append("# Engines take a folder instead of this file: with the weights, and with it as config.json.")
    if any(_quantisation(config, pool) for pool in config.cluster.pools):
        model = load_model(config.model)
        cut = [pool.name for pool in config.cluster.pools if cut_blocks(partition_of(pool), model)]
        parts.append(
            "# --quantization fp8 scales this bf16 checkpoint by tensors while it is loaded. Simulated are weights\n"
            "# scaled in blocks of 128 x 128, as published fp8 checkpoints are: "
            + (
                f"but one would not load in {', '.join(cut)},\n# whose tp cuts blocks (ep, or less tp, would not)."
                if cut
                else "if there is one, serve it instead."
            )
        )
    if config.engine.framework == "vllm" and any(config.hands_over(pool) for pool in config.cluster.pools):
        parts.append(
            "# Besides, NIXL needs VLLM_NIXL_SIDE_CHANNEL_HOST, a VLLM_NIXL_SIDE_CHANNEL_PORT of each instance's own\n"
            "# and a router that sends requests to prefill first; the graph below brings these."
        )
    for pool in config.cluster.pools:
        number = f"{pool.instances} instance{'s' if pool.instances > 1 else ''} of {pool.gpus_per_instance}"
        parts.append(f"\n# pool {pool.name} ({pool.role}): {number} {config.hardware_of(pool)}")
        parts.append(" \\\n  ".join(_lines(_command(config, pool))))
    if config.engine.framework == "vllm" and all(pool.ffn is None for pool in config.cluster.pools):
        parts.append(f"\n# The same as a Dynamo graph\n{dump_yaml(dynamo_graph(config))}")
    return "\n".join(parts) + "\n"


def model_name(config: SimulationConfig) -> str:
    """The name on Hugging Face where the model's source says it, else the folder or name of the configuration."""
    found = re.match(r"https://huggingface\.co/([^/]+/[^/]+)/", load_model(config.model).source)
    if found:
        return found[1]
    path = Path(config.model)
    return str(path.parent) if path.name == "config.json" else config.model


def _command(config: SimulationConfig, pool: PoolConfig) -> list[str]:
    if pool.ffn is not None:
        return [f"# no command is known for attention and FFN workers apart: {partition_text(pool)}"]
    match config.engine_of(pool).framework:
        case "vllm":
            return ["vllm", "serve", model_name(config), *vllm_arguments(config, pool)]
        case "sglang":
            return ["python", "-m", "sglang.launch_server", *sglang_arguments(config, pool)]
        case framework:
            return [f"# no command is known for {framework}:", str(partition_text(pool))]


def partition_text(pool: PoolConfig) -> str:
    """Degrees of parallelism that are more than 1."""
    degrees = (("tp", pool.tp), ("ep", pool.ep), ("dp", pool.dp), ("pp", pool.pp))
    own = " ".join(f"{name}{degree}" for name, degree in degrees if degree > 1) or "tp1"
    if pool.ffn is None:
        return own
    of_ffn = (("tp", pool.ffn.tp), ("ep", pool.ffn.ep), ("dp", pool.ffn.dp))
    return f"{own} ffn({' '.join(f'{name}{degree}' for name, degree in of_ffn if degree > 1) or 'tp1'})"


def vllm_arguments(config: SimulationConfig, pool: PoolConfig) -> list[str]:
    """Of ``vllm serve``, after the model."""
    engine = config.engine_of(pool)
    found = ["--tensor-parallel-size", str(pool.tp)]
    for option, degree in (("--data-parallel-size", pool.dp), ("--pipeline-parallel-size", pool.pp)):
        found += [option, str(degree)] if degree > 1 else []
    found += ["--enable-expert-parallel"] if pool.ep > 1 else []
    found += [
        "--max-num-batched-tokens",
        str(engine.max_batched_tokens),
        "--max-num-seqs",
        str(engine.max_seqs),
        "--gpu-memory-utilization",
        f"{engine.gpu_memory_utilization:g}",
        "--block-size",
        str(engine.block_tokens),
        "--enable-prefix-caching" if engine.prefix_caching else "--no-enable-prefix-caching",
        "--async-scheduling" if engine.async_scheduling else "--no-async-scheduling",
    ]
    found += [*_quantisation(config, pool), *_optional(engine)]
    if config.hands_over(pool):
        transfer = {"kv_connector": "NixlConnector", "kv_role": VLLM_ROLES[pool.role]}
        found += ["--kv-transfer-config", json.dumps(transfer)]
    return found


def _quantisation(config: SimulationConfig, pool: PoolConfig) -> list[str]:
    """What makes fp8 of a checkpoint that is published in bf16, while it is loaded; both engines name it so."""
    is_published = load_model(config.model).published_weights == "fp8"
    return ["--quantization", "fp8"] if config.engine_of(pool).weights == "fp8" and not is_published else []


def _optional(engine: EngineConfig) -> list[str]:
    """What differs from vLLM's own ways."""
    found = [] if engine.max_model_len is None else ["--max-model-len", str(engine.max_model_len)]
    found += ["--kv-cache-dtype", "fp8"] if engine.kv == "fp8" else []
    found += [] if engine.chunked_prefill else ["--no-enable-chunked-prefill"]
    return found + ([] if engine.cuda_graphs else ["--enforce-eager"])


def sglang_arguments(config: SimulationConfig, pool: PoolConfig) -> list[str]:
    """Of ``sglang.launch_server``. With data-parallel attention ``--tp-size`` counts all GPUs of a stage; chunks and
    requests are those of all ranks."""
    engine = config.engine_of(pool)
    found = ["--model-path", model_name(config), "--tp-size", str(pool.tp * pool.dp)]
    found += ["--dp-size", str(pool.dp), "--enable-dp-attention"] if pool.dp > 1 else []
    found += ["--ep-size", str(pool.ep)] if pool.ep > 1 else []
    found += ["--pp-size", str(pool.pp)] if pool.pp > 1 else []
    found += [
        "--chunked-prefill-size",
        str(engine.max_batched_tokens * pool.dp),
        "--max-running-requests",
        str(engine.max_seqs * pool.dp),
        "--mem-fraction-static",
        f"{engine.gpu_memory_utilization:g}",
    ]
    found += [] if engine.prefix_caching else ["--disable-radix-cache"]
    found += _without_graphs(engine, pool)
    found += _quantisation(config, pool)
    found += ["--kv-cache-dtype", "fp8_e4m3"] if engine.kv == "fp8" else []
    if config.hands_over(pool) and pool.role != "mixed":
        found += ["--disaggregation-mode", pool.role, "--disaggregation-transfer-backend", "nixl"]
    return found


def _without_graphs(engine: EngineConfig, pool: PoolConfig) -> list[str]:
    """What switches off the graphs of SGLang that a configuration has not, where it would have them."""
    if not engine.cuda_graphs:
        return ["--disable-cuda-graph"]
    has_own = has_prompt_graphs(pool.role, pool.pp, has_graphs=True, has_two_batches=engine.overlap.two_batch)
    return ["--disable-prefill-cuda-graph"] if has_own and engine.prompt_graph_sizes == () else []


def dynamo_graph(config: SimulationConfig) -> dict[str, object]:
    """A ``DynamoGraphDeployment`` with a frontend and a service per pool."""
    services: dict[str, object] = {"Frontend": {"componentType": "frontend", "replicas": 1}}
    for pool in config.cluster.pools:
        arguments = ["--model", model_name(config), *vllm_arguments(config, pool)]
        if pool.role == "prefill":
            arguments.append("--is-prefill-worker")
        services[f"Vllm{''.join(part.capitalize() for part in re.split(r'[-_.]', pool.name))}Worker"] = {
            "componentType": "worker",
            **({"subComponentType": pool.role} if pool.role != "mixed" else {}),
            "replicas": pool.instances,
            "resources": {"limits": {"gpu": str(pool.gpus_per_instance)}},
            "extraPodSpec": {"mainContainer": {"command": ["python3", "-m", "dynamo.vllm"], "args": arguments}},
        }
    return {
        "apiVersion": "nvidia.com/v1alpha1",
        "kind": "DynamoGraphDeployment",
        "metadata": {"name": re.sub(r"[^a-z0-9]+", "-", config.model.rpartition("/")[2].lower()).strip("-")},
        "spec": {"services": services},
    }


def _lines(words: list[str]) -> Iterator[str]:
    """An option with its value per line, the program on the first."""
    line: list[str] = []
    for word in words:
        if word.startswith("--") and line:
            yield " ".join(line)
            line = []
        line.append(word if word.startswith("#") else shlex.quote(word))
    yield " ".join(line)
