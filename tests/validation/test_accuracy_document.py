"""Tables of the accuracy document."""

from __future__ import annotations

import pytest

from tests.validation.accuracy_document import written


def test_tables_are_written_between_their_markers() -> None:
    document = "a\n<!-- models: x -->\nold\n<!-- end -->\nb\n<!-- models: y -->\n<!-- end -->\n"
    assert written(document, "models: x", "| new |") == document.replace("old", "| new |")
    assert written(document, "models: y", "| z |").endswith("y -->\n| z |\n<!-- end -->\n")
    with pytest.raises(ValueError, match="expected one '<!-- models: z -->'"):
        written(document, "models: z", "")
