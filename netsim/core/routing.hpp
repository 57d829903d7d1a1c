// Shortest-path routing with static ECMP.
#pragma once

#include <deque>
#include <unordered_map>
#include <vector>

#include "network.hpp"

namespace netsim {

struct Path {
    std::vector<LinkId> links;
    TimePs latency_ps;            // sum over the links
    std::int64_t bottleneck_bps;  // smallest capacity of the links
};

// Breadth-first shortest paths in hops. Of several equal next hops, NVSwitches are preferred, and the ECMP hash
// chooses among what remains. Distance tables are built per destination when first needed and kept, as are paths.
class Routing {
  public:
    explicit Routing(const Network& network);

    // The path of a flow; stays valid. src == dst gives the empty path. Throws where there is none.
    const Path& path(NodeId src, NodeId dst, std::uint32_t flow_label);

    // Links out of `at` that lie on a shortest path to `dst`, in link order, before the choice by hash.
    std::vector<LinkId> next_hops(NodeId at, NodeId dst);

  private:
    using Hops = std::uint16_t;
    struct Key {
        NodeId src, dst;
        std::uint32_t flow_label;
        bool operator==(const Key&) const = default;
    };
    struct KeyHash {
        std::size_t operator()(const Key& key) const;
    };

    const std::vector<Hops>& distances_to(NodeId dst);
    Hops distance(const std::vector<Hops>& to_dst, NodeId node, NodeId dst) const;
    Path trace(NodeId src, NodeId dst, std::uint32_t flow_label);

    const Network& network_;
    std::vector<std::uint32_t> transit_index_;  // of forwarding nodes, which alone have table entries
    std::size_t transit_count_ = 0;
    std::vector<std::vector<Hops>> distances_;  // [destination][transit node]; empty until needed
    std::unordered_map<Key, const Path*, KeyHash> cache_;
    std::deque<Path> paths_;  // owns what cache_ points to; never iterated
};

}  // namespace netsim
