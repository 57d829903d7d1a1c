"""Files shipped with the package: models, GPUs, and measured kernel times by GPU."""

from pathlib import Path

FOLDER = Path(__file__).parent
