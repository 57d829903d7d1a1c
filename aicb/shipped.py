"""Where the files are that come with this package: descriptions of models and GPUs, and measurements.

Beside the modules, not where the compiled extension is: an editable installation keeps that elsewhere.
"""

from pathlib import Path

PACKAGE = Path(__file__).parent
