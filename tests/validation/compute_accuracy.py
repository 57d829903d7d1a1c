#!/usr/bin/env python3
"""Prints the accuracy of kernel times, with the published tables where they lie beside the repository.

python -m tests.validation.compute_accuracy [--timing engine|graph|cold] [--json]
"""

from __future__ import annotations

import sys
from pathlib import Path

from vidur_pd.__main__ import main

PUBLISHED = Path(__file__).resolve().parents[3] / "shared" / "data" / "kernels"

if __name__ == "__main__":
    beside = ["--published", str(PUBLISHED)] if PUBLISHED.is_dir() else []
    sys.argv[1:] = ["validate", "--only", "compute", *beside, *sys.argv[1:]]
    main()
