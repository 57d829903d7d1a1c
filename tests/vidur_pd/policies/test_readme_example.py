"""The policies in vidur_pd/README.md, as they stand there."""

from __future__ import annotations

import re
from pathlib import Path

from tests.integration.small_runs import config, pool, simulate

README = Path(__file__).parents[3] / "vidur_pd" / "README.md"


def test_the_policies_of_the_readme_serve_every_request(tmp_path: Path) -> None:
    """Blocks are scarce, so that requests are preempted; the last that came is served before others."""
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    classes = {match[1]: block for block in blocks if (match := re.search(r"class (\w+)\(", block))}
    places = [tmp_path / f"{name}.py" for name in ("Lifo", "CacheAware")]
    for place in places:
        place.write_text(classes[place.stem])
    engine = {"policy": f"{places[0]}:Lifo", "num_kv_blocks": 60, "prefix_caching": True, "max_seqs": 8}
    pools = [pool("m", "mixed", instances=2)]
    rows = [(10 * i, 100 + 7 * i, 40) for i in range(40)]
    result = simulate(config(pools, engine=engine, routing={"policy": f"{places[1]}:CacheAware"}), rows)
    assert result.summary.completed == 40
    assert result.summary.preemptions > 0
    waits_ps = [each.scheduled_ps - each.arrived_ps for each in result.requests]
    assert waits_ps[39] < waits_ps[30] < waits_ps[10]
