"""Topology files: which of the formats a file is in."""

from __future__ import annotations

import re
from pathlib import Path

from boundary.errors import InputError
from boundary.text_files import read_text
from netsim.topologies.simai_text import from_simai
from netsim.topologies.yaml_text import from_document, load_yaml
from netsim.topology import Topology

_SIMAI_HEADER = re.compile(r"\s*\d+(?:[ \t]+\d+){4}[ \t]+\S+[ \t]*(?:\r?\n|$)")


def read_topology(path: Path) -> Topology:
    """Reads SimAI's text, or YAML that lists nodes and links, or a spec with a ``kind`` (`netsim.topologies.build`).

    Raises:
        InputError: naming the file, the line or field, what was found and what was expected.
    """
    text = read_text(path, "a topology")
    if _SIMAI_HEADER.match(text):
        return from_simai(text, str(path))
    document = load_yaml(text, str(path))
    if "kind" not in document:
        return from_document(document, str(path))
    if document["kind"] == "file":
        raise InputError(f"{path} kind: found 'file', expected nodes and links, or a kind that says how to build them")
    from netsim.topologies.build import build, parse_spec  # pydantic is only needed for specs

    return build(parse_spec(document, str(path)))
