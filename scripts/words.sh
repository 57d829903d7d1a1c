#!/usr/bin/env bash
# Spelling, and words that this code had for things that the field has words for (CONTRIBUTING.md, glossary).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

codespell
retired=(codespell --dictionary scripts/retired_words.txt --regex '[A-Za-z]+' --skip 'netsim/backends/ns3/lib,*.csv,*.jsonl,*.html')
"${retired[@]}" boundary simccl aicb vidur_pd $(git ls-files docs | grep -v options.md)
"${retired[@]}" --ignore-words-list pace,flight netsim docs/options.md  # RoCE senders pace packets; bytes are in flight
