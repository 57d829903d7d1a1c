// A radix tree over sequences of tokens: what a prefix cache holds, and which part of it goes first.
//
// Source of the rules: SGLang 0.5.23, python/sglang/srt/mem_cache/radix_cache.py and evict_policy.py.
//
// A node stands for the tokens from its start to its end, both multiples of the page. Looking up a sequence refreshes
// the path and splits the node that it ends in: the upper part is new, with the locks and hits of the lower one.
// Eviction takes whole leaves that nobody locks, so it may free more than was asked for.
#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "token_label.hpp"

namespace serving {

// Which leaf goes first: that of the oldest access, or of the fewest insertions and then the oldest access.
enum class Eviction : std::uint8_t { kLru, kLfu };

class RadixTree {
  public:
    using Node = std::int32_t;
    static constexpr Node kRoot = 0;

    struct Found {
        Node node;      // in which the tokens found end
        Tokens tokens;  // from the start
    };
    struct Peeked {
        Tokens tokens;  // found
        Tokens locked;  // of these, in locked nodes
    };
    struct Evicted {
        Tokens start = 0, end = 0;
        std::shared_ptr<const KeptLabel> kept = nullptr;

        Tokens tokens() const { return end - start; }
    };
    // A node as tests look at it.
    struct Shown {
        Tokens start, end;
        std::int64_t locks, hits;
    };

    RadixTree(Tokens page_tokens, Eviction eviction);

    // Tokens of nodes that nobody locks.
    Tokens evictable_tokens() const { return evictable_; }
    // How much of the first `tokens` tokens is there; changes nothing.
    Peeked peek(const TokenLabel& label, Tokens tokens) const;
    // The same, with the node: splits and refreshes.
    Found match(const TokenLabel& label, Tokens tokens);
    // Adds the first `tokens` tokens, at least a page; returns the last node and how much was there already. Nodes on
    // the way that end behind the first `counted` tokens get a hit: these were counted before.
    Found insert(const std::shared_ptr<const KeptLabel>& kept, Tokens tokens, Tokens counted);
    // Keeps a node, and all above, from eviction until `unlock`.
    void lock(Node node);
    void unlock(Node node);
    // Removes the leaf that goes first; one of no tokens if there is none.
    Evicted evict_leaf();
    void clear();

    // Places of `ends` in depth-first order, those below a node before those at it; of two subtrees the one with more
    // weight first: `ends` at its root and at the children of that, with what these weigh.
    std::vector<std::size_t> depth_first(const std::vector<Node>& ends) const;
    // Nodes below the root, parents before children, children in the order in which they came.
    std::vector<Shown> shown() const;

  private:
    static constexpr Node kNone = -1;

    struct Entry {
        Node parent = kNone, first_child = kNone, last_child = kNone;
        Node before = kNone, after = kNone;  // among the children of its parent, in the order in which they came
        Tokens start = 0, end = 0;
        std::shared_ptr<const KeptLabel> kept;
        std::int64_t locks = 0, hits = 0;
        std::int64_t accessed = 0;
        bool is_listed = false;  // in `leaves_`

        Tokens tokens() const { return end - start; }
    };
    struct ChildKey {
        Node parent;
        std::uint64_t content;  // of the last token of the child's first page
        bool operator==(const ChildKey&) const = default;
    };
    struct HashOfKey {
        std::size_t operator()(const ChildKey& key) const {
            return static_cast<std::size_t>(chained(key.content, static_cast<std::uint64_t>(key.parent)));
        }
    };
    using Rank = std::tuple<std::int64_t, std::int64_t, Node>;

    Entry& at(Node node) { return entries_[static_cast<std::size_t>(node)]; }
    const Entry& at(Node node) const { return entries_[static_cast<std::size_t>(node)]; }
    Tokens whole_pages(Tokens tokens) const { return tokens / page_tokens_ * page_tokens_; }
    Node child_of(Node parent, const TokenLabel& label) const;
    ChildKey key_of(Node node) const;
    Tokens agreed(Node node, const TokenLabel& label, Tokens tokens) const;
    Node new_node(Entry entry);
    Node split(Node lower, Tokens where);
    Node add_leaf(Node parent, const std::shared_ptr<const KeptLabel>& kept, Tokens end);
    Rank rank_of(Node node) const;
    void unlist(Node node);
    void list_if_leaf(Node node);
    void refresh(Node node, std::int64_t time);
    void add_hit(Node node);

    Tokens page_tokens_;
    Eviction eviction_;
    std::vector<Entry> entries_;
    std::vector<Node> unused_;
    std::unordered_map<ChildKey, Node, HashOfKey> children_;
    std::set<Rank> leaves_;  // that can be evicted, the first one first
    Tokens evictable_ = 0;
    std::int64_t clock_ = 0;  // of accesses
};

}  // namespace serving
