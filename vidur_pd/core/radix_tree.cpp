#include "radix_tree.hpp"

#include <algorithm>
#include <utility>

namespace serving {

RadixTree::RadixTree(Tokens page_tokens, Eviction eviction) : page_tokens_(page_tokens), eviction_(eviction) {
    clear();
}

void RadixTree::clear() {
    entries_.assign(1, Entry{});
    unused_.clear();
    children_.clear();
    leaves_.clear();
    evictable_ = 0;
}

RadixTree::Peeked RadixTree::peek(const TokenLabel& label, Tokens tokens) const {
    Peeked found{0, 0};
    const Tokens limit = whole_pages(tokens);
    for (Node node = kRoot; found.tokens < limit;) {
        node = child_of(node, label);
        if (node == kNone) break;
        const Tokens end = agreed(node, label, limit);
        if (at(node).locks) found.locked += end - found.tokens;
        found.tokens = end;
        if (end < at(node).end) break;
    }
    return found;
}

RadixTree::Found RadixTree::match(const TokenLabel& label, Tokens tokens) {
    const Tokens limit = whole_pages(tokens);
    const std::int64_t time = ++clock_;
    Node node = kRoot;
    while (at(node).end < limit) {
        const Node child = child_of(node, label);
        if (child == kNone) break;
        refresh(child, time);
        const Tokens end = agreed(child, label, limit);
        if (end < at(child).end) {
            node = split(child, end);
            break;
        }
        node = child;
    }
    return {node, at(node).end};
}

RadixTree::Found RadixTree::insert(const std::shared_ptr<const KeptLabel>& kept, Tokens tokens, Tokens counted) {
    const Tokens limit = whole_pages(tokens);
    const std::int64_t time = ++clock_;
    Node node = kRoot;
    while (at(node).end < limit) {
        Node child = child_of(node, kept->label);
        if (child == kNone) break;
        refresh(child, time);
        const Tokens end = agreed(child, kept->label, limit);
        if (end < at(child).end) child = split(child, end);
        if (end > counted) add_hit(child);
        node = child;
    }
    const Tokens found = at(node).end;
    if (found == limit) return {node, found};
    node = add_leaf(node, kept, limit);
    if (limit > counted) add_hit(node);
    return {node, found};
}

void RadixTree::lock(Node node) {
    for (; node != kRoot; node = at(node).parent) {
        if (at(node).locks++ > 0) continue;
        unlist(node);
        evictable_ -= at(node).tokens();
    }
}

void RadixTree::unlock(Node node) {
    for (; node != kRoot; node = at(node).parent) {
        if (--at(node).locks > 0) continue;
        evictable_ += at(node).tokens();
        list_if_leaf(node);
    }
}

RadixTree::Evicted RadixTree::evict_leaf() {
    if (leaves_.empty()) return {};
    const Node leaf = std::get<Node>(*leaves_.begin());
    unlist(leaf);
    children_.erase(key_of(leaf));
    const Entry gone = std::exchange(at(leaf), Entry{});
    (gone.before == kNone ? at(gone.parent).first_child : at(gone.before).after) = gone.after;
    (gone.after == kNone ? at(gone.parent).last_child : at(gone.after).before) = gone.before;
    evictable_ -= gone.tokens();
    unused_.push_back(leaf);
    list_if_leaf(gone.parent);
    return {gone.start, gone.end, gone.kept};
}

std::vector<std::size_t> RadixTree::depth_first(const std::vector<Node>& ends) const {
    std::unordered_map<Node, std::vector<std::size_t>> places;
    for (std::size_t place = 0; place < ends.size(); ++place) places[ends[place]].push_back(place);
    std::unordered_map<Node, std::int64_t> weights;
    for (const auto& [node, at_node] : places) weights[node] = static_cast<std::int64_t>(at_node.size());
    const auto weight = [&](Node node) {
        const auto found = weights.find(node);
        return found == weights.end() ? std::int64_t{0} : found->second;
    };
    // Calls `leave` for all nodes, children before parents.
    const auto walk = [&](const auto& ordered_children, const auto& leave) {
        std::vector<std::pair<Node, bool>> stack{{kRoot, false}};
        while (!stack.empty()) {
            const auto [node, is_done] = stack.back();
            stack.pop_back();
            if (is_done) {
                leave(node);
                continue;
            }
            stack.emplace_back(node, true);
            const std::vector<Node> children = ordered_children(node);
            for (auto child = children.rbegin(); child != children.rend(); ++child) stack.emplace_back(*child, false);
        }
    };
    const auto in_order = [&](Node node) {
        std::vector<Node> children;
        for (Node child = at(node).first_child; child != kNone; child = at(child).after) children.push_back(child);
        return children;
    };
    walk(in_order, [&](Node node) {
        std::int64_t sum = weight(node);
        for (const Node child : in_order(node)) sum += weight(child);
        weights[node] = sum;
    });
    const auto heavy_first = [&](Node node) {
        std::vector<Node> children = in_order(node);
        std::stable_sort(children.begin(), children.end(), [&](Node a, Node b) { return weight(a) > weight(b); });
        return children;
    };
    std::vector<std::size_t> order;
    walk(heavy_first, [&](Node node) {
        const auto found = places.find(node);
        if (found != places.end()) order.insert(order.end(), found->second.begin(), found->second.end());
    });
    return order;
}

std::vector<RadixTree::Shown> RadixTree::shown() const {
    std::vector<Shown> nodes;
    std::vector<Node> stack{kRoot};
    while (!stack.empty()) {
        const Node node = stack.back();
        stack.pop_back();
        if (node != kRoot) nodes.push_back({at(node).start, at(node).end, at(node).locks, at(node).hits});
        for (Node child = at(node).last_child; child != kNone; child = at(child).before) stack.push_back(child);
    }
    return nodes;
}

// The child that begins as the label goes on behind the parent; there may be less than a page of that.
RadixTree::Node RadixTree::child_of(Node parent, const TokenLabel& label) const {
    const auto found = children_.find({parent, label.at(at(parent).end + page_tokens_ - 1)});
    return found == children_.end() ? kNone : found->second;
}

RadixTree::ChildKey RadixTree::key_of(Node node) const {
    const Entry& own = at(node);
    return {own.parent, own.kept->label.at(own.start + page_tokens_ - 1)};
}

// End of what the label, up to `tokens`, has in common with the node: at least a page of it.
Tokens RadixTree::agreed(Node node, const TokenLabel& label, Tokens tokens) const {
    const Entry& own = at(node);
    return whole_pages(label.common(own.kept->label, own.start, std::min(own.end, tokens)));
}

RadixTree::Node RadixTree::new_node(Entry entry) {
    if (unused_.empty()) {
        entries_.push_back(std::move(entry));
        return static_cast<Node>(entries_.size() - 1);
    }
    const Node node = unused_.back();
    unused_.pop_back();
    at(node) = std::move(entry);
    return node;
}

// Makes the tokens of a node up to `where` a node of their own, above it; returns that.
RadixTree::Node RadixTree::split(Node lower, Tokens where) {
    Entry above = at(lower);
    const ChildKey key = key_of(lower);
    above.end = where;
    above.first_child = above.last_child = lower;
    above.accessed = ++clock_;
    above.is_listed = false;
    const Node upper = new_node(std::move(above));
    Entry& own = at(lower);
    (own.before == kNone ? at(own.parent).first_child : at(own.before).after) = upper;
    (own.after == kNone ? at(own.parent).last_child : at(own.after).before) = upper;
    own.parent = upper;
    own.before = own.after = kNone;
    own.start = where;
    children_[key] = upper;
    children_[key_of(lower)] = lower;
    return upper;
}

RadixTree::Node RadixTree::add_leaf(Node parent, const std::shared_ptr<const KeptLabel>& kept, Tokens end) {
    unlist(parent);
    Entry leaf;
    leaf.parent = parent;
    leaf.before = at(parent).last_child;
    leaf.start = at(parent).end;
    leaf.end = end;
    leaf.kept = kept;
    leaf.accessed = ++clock_;
    const Node node = new_node(std::move(leaf));
    (at(node).before == kNone ? at(parent).first_child : at(at(node).before).after) = node;
    at(parent).last_child = node;
    children_[key_of(node)] = node;
    evictable_ += at(node).tokens();
    list_if_leaf(node);
    return node;
}

RadixTree::Rank RadixTree::rank_of(Node node) const {
    const Entry& own = at(node);
    return {eviction_ == Eviction::kLfu ? own.hits : 0, own.accessed, node};
}

void RadixTree::unlist(Node node) {
    if (std::exchange(at(node).is_listed, false)) leaves_.erase(rank_of(node));
}

void RadixTree::list_if_leaf(Node node) {
    Entry& own = at(node);
    if (node == kRoot || own.locks || own.first_child != kNone) return;
    own.is_listed = true;
    leaves_.insert(rank_of(node));
}

void RadixTree::refresh(Node node, std::int64_t time) {
    unlist(node);
    at(node).accessed = time;
    list_if_leaf(node);
}

void RadixTree::add_hit(Node node) {
    unlist(node);
    ++at(node).hits;
    list_if_leaf(node);
}

}  // namespace serving
