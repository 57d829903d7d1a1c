"""A radix cache over explicit lists of tokens, written from SGLang's rules: an oracle for the pool of the core.

No ids, no labels, no lists of leaves: every question is answered by walking the tree. A token is any value; those of
two requests are equal where their content is.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field
from itertools import count

Token = Hashable


@dataclass(eq=False)
class Node:
    key: list[Token]
    parent: Node | None
    accessed: int = 0
    hits: int = 0
    locks: int = 0
    children: list[Node] = field(default_factory=list)

    def depth(self) -> int:
        """Tokens above the node."""
        return 0 if self.parent is None else self.parent.depth() + len(self.parent.key)

    def path(self) -> Iterator[Node]:
        node = self
        while node.parent is not None:
            yield node
            node = node.parent


@dataclass
class Holding:
    """What a request holds."""

    last: Node
    in_tree: int = 0
    counted: int = 0
    own_pages: int = 0


class RadixOracle:
    """Pages of one rank; sizes of nodes in tokens."""

    def __init__(self, pages: int, page: int, eviction: str) -> None:
        self.page, self.pages = page, pages
        self._order: Callable[[Node], tuple[int, ...]] = {
            "lru": lambda node: (node.accessed,),
            "lfu": lambda node: (node.hits, node.accessed),
        }[eviction]
        self._time = count(1)
        self.root = Node([], None)
        self.held: dict[int, Holding] = {}
        self.evicted: list[int] = []
        """Tokens of each leaf that was evicted."""

    def nodes(self) -> list[Node]:
        found = []
        line = list(self.root.children)
        while line:
            node = line.pop()
            found.append(node)
            line += node.children
        return found

    def shown(self) -> list[tuple[int, int, int, int]]:
        return sorted((node.depth(), node.depth() + len(node.key), node.locks, node.hits) for node in self.nodes())

    def evictable(self) -> int:
        return sum(len(node.key) for node in self.nodes() if node.locks == 0)

    def blank(self) -> int:
        """Pages that neither the tree nor a request has."""
        cached = sum(len(node.key) for node in self.nodes()) // self.page
        return self.pages - cached - sum(held.own_pages for held in self.held.values())

    def free(self) -> int:
        return self.blank() + self.evictable() // self.page

    def peek(self, tokens: list[Token]) -> tuple[int, int]:
        """Tokens found, and those in locked nodes; nothing changes."""
        tokens, found, locked, node = self._whole(tokens), 0, 0, self.root
        while (child := self._child(node, tokens[found:])) is not None:
            common = self._common(child.key, tokens[found:])
            found += common
            locked += common if child.locks else 0
            if common < len(child.key):
                break
            node = child
        return found, locked

    def match(self, tokens: list[Token]) -> tuple[Node, int]:
        tokens, now, found, node = self._whole(tokens), next(self._time), 0, self.root
        while (child := self._child(node, tokens[found:])) is not None:
            child.accessed = now
            common = self._common(child.key, tokens[found:])
            found += common
            if common < len(child.key):
                return self._split(child, common), found
            node = child
        return node, found

    def insert(self, tokens: list[Token], counted: int) -> int:
        """Returns what was there already."""
        tokens, now, found, node = self._whole(tokens), next(self._time), 0, self.root
        while (child := self._child(node, tokens[found:])) is not None:
            child.accessed = now
            common = self._common(child.key, tokens[found:])
            found += common
            node = child if common == len(child.key) else self._split(child, common)
            node.hits += found > counted
        if tokens[found:]:
            leaf = Node(tokens[found:], node, accessed=next(self._time), hits=int(len(tokens) > counted))
            node.children.append(leaf)
        return found

    def admit(self, index: int, tokens: list[Token], prefix: int) -> None:
        """A request holds what is cached of its first ``prefix`` tokens."""
        last, found = self.match(tokens[:prefix])
        self.held[index] = Holding(last, found)
        self._lock(last, 1)

    def grow(self, index: int, tokens: int) -> None:
        """It holds pages for so many tokens, and what is too much is evicted."""
        held = self.held[index]
        held.own_pages = max(held.own_pages, -(-tokens // self.page) - held.in_tree // self.page)
        self.evict(0)

    def evict(self, pages: int) -> None:
        while self.blank() < pages:
            leaves = [node for node in self.nodes() if not node.children and node.locks == 0]
            if not leaves:
                return
            leaf = min(leaves, key=self._order)
            assert leaf.parent is not None
            leaf.parent.children.remove(leaf)
            self.evicted.append(len(leaf.key))

    def checkpoint(self, index: int, tokens: list[Token], prompt: int) -> None:
        """What has been computed goes into the tree."""
        tokens = self._whole(tokens)
        if not tokens:
            return
        held = self.held[index]
        self.insert(tokens, held.counted)
        held.counted = max(held.counted, len(tokens))
        prompt_end = prompt // self.page * self.page
        if 0 < prompt_end < len(tokens):
            self.insert(tokens[:prompt_end], prompt_end)
        held.own_pages -= (len(tokens) - held.in_tree) // self.page
        last, found = self.match(tokens)
        assert found == len(tokens)
        self._lock(last, 1)
        self._lock(held.last, -1)
        held.last, held.in_tree = last, found

    def release(self, index: int) -> None:
        self._lock(self.held.pop(index).last, -1)

    def depth_first(self, requests: list[list[Token]]) -> list[int]:
        """Places of requests, looked up one after another."""
        ends = [self.match(tokens)[0] for tokens in requests]
        places = {node: [i for i, end in enumerate(ends) if end is node] for node in [self.root, *self.nodes()]}

        def weigh(node: Node) -> int:
            return len(places[node]) + sum(weigh(child) for child in node.children)

        def walk(node: Node) -> Iterator[int]:
            for child in sorted(node.children, key=weigh, reverse=True):
                yield from walk(child)
            yield from places[node]

        return list(walk(self.root))

    def _whole(self, tokens: list[Token]) -> list[Token]:
        return tokens[: len(tokens) // self.page * self.page]

    def _child(self, node: Node, tokens: list[Token]) -> Node | None:
        if not tokens:
            return None
        return next((child for child in node.children if child.key[: self.page] == tokens[: self.page]), None)

    def _common(self, key: list[Token], tokens: list[Token]) -> int:
        common = 0
        while common < min(len(key), len(tokens)) and key[common] == tokens[common]:
            common += 1
        return common // self.page * self.page

    def _split(self, lower: Node, length: int) -> Node:
        assert lower.parent is not None
        upper = Node(lower.key[:length], lower.parent, next(self._time), lower.hits, lower.locks, [lower])
        siblings = lower.parent.children
        siblings[siblings.index(lower)] = upper
        lower.parent, lower.key = upper, lower.key[length:]
        return upper

    def _lock(self, last: Node, by: int) -> None:
        for node in last.path():
            node.locks += by
