#include "routing.hpp"

#include <algorithm>
#include <functional>
#include <limits>
#include <string>

#include "ecmp.hpp"

namespace netsim {

namespace {

constexpr std::uint16_t kUnreachable = std::numeric_limits<std::uint16_t>::max();

}  // namespace

Routing::Routing(const Network& network)
    : network_(network), transit_index_(network.node_count()), distances_(network.node_count()) {
    for (NodeId node = 0; node < network.node_count(); ++node) {
        if (network.forwards(node)) transit_index_[node] = static_cast<std::uint32_t>(transit_count_++);
    }
}

std::size_t Routing::KeyHash::operator()(const Key& key) const {
    std::uint64_t mixed = (std::uint64_t{key.src} << 32 | key.dst) * 0x9e3779b97f4a7c15ULL;
    mixed = (mixed ^ mixed >> 32 ^ key.flow_label) * 0xbf58476d1ce4e5b9ULL;
    return static_cast<std::size_t>(mixed ^ mixed >> 29);
}

const Path& Routing::path(NodeId src, NodeId dst, std::uint32_t flow_label) {
    for (const NodeId node : {src, dst}) {
        if (node >= network_.node_count()) {
            throw MisuseError("unknown node: found " + std::to_string(static_cast<std::int32_t>(node)) +
                              ", expected 0 to " + std::to_string(network_.node_count() - 1));
        }
    }
    const Path*& cached = cache_[Key{src, dst, flow_label}];
    if (cached == nullptr) {
        try {
            cached = &paths_.emplace_back(trace(src, dst, flow_label));
        } catch (...) {
            cache_.erase(Key{src, dst, flow_label});
            throw;
        }
    }
    return *cached;
}

const std::vector<Routing::Hops>& Routing::distances_to(NodeId dst) {
    std::vector<Hops>& hops = distances_[dst];
    if (!hops.empty() || transit_count_ == 0) return hops;
    hops.assign(transit_count_, kUnreachable);
    std::vector<NodeId> frontier{dst}, next;
    if (network_.forwards(dst)) hops[transit_index_[dst]] = 0;
    for (Hops away = 1; !frontier.empty(); ++away, frontier.swap(next), next.clear()) {
        for (const NodeId node : frontier) {
            for (const LinkId link : network_.in_links(node)) {
                const NodeId before = network_.link(link).src;
                if (!network_.forwards(before) || hops[transit_index_[before]] != kUnreachable) continue;
                hops[transit_index_[before]] = away;
                next.push_back(before);
            }
        }
    }
    return hops;
}

Routing::Hops Routing::distance(const std::vector<Hops>& to_dst, NodeId node, NodeId dst) const {
    if (node == dst) return 0;
    return network_.forwards(node) ? to_dst[transit_index_[node]] : kUnreachable;
}

std::vector<LinkId> Routing::next_hops(NodeId at, NodeId dst) {
    const std::vector<Hops>& to_dst = distances_to(dst);
    Hops nearest = kUnreachable;
    std::vector<LinkId> hops;
    for (const LinkId link : network_.out_links(at)) {
        const Hops away = distance(to_dst, network_.link(link).dst, dst);
        if (away == kUnreachable || away > nearest) continue;
        if (away < nearest) hops.clear();
        nearest = away;
        hops.push_back(link);
    }
    const auto leads_to_nvswitch = [&](LinkId link) { return network_.is_nvswitch(network_.link(link).dst); };
    if (std::ranges::any_of(hops, leads_to_nvswitch)) std::erase_if(hops, std::not_fn(leads_to_nvswitch));
    return hops;
}

Path Routing::trace(NodeId src, NodeId dst, std::uint32_t flow_label) {
    Path path{{}, 0, std::numeric_limits<std::int64_t>::max()};
    for (NodeId at = src; at != dst;) {
        const std::vector<LinkId> hops = next_hops(at, dst);
        if (hops.empty()) {
            throw MisuseError("no path: found none from node " + std::to_string(src) + " to node " +
                              std::to_string(dst) + ", expected a connection through switches (GPUs do not forward)");
        }
        const LinkId chosen = hops.size() == 1 ? hops[0] : hops[ecmp_hash(src, dst, flow_label, at) % hops.size()];
        const Link& link = network_.link(chosen);
        path.links.push_back(chosen);
        path.latency_ps += link.latency_ps;
        path.bottleneck_bps = std::min(path.bottleneck_bps, link.capacity_bps);
        at = link.dst;
    }
    return path;
}

}  // namespace netsim
