// Shortest-path routing with static ECMP.
#pragma once

#include <deque>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <unordered_map>
#include <vector>

#include "ecmp.hpp"
#include "network.hpp"

namespace netsim {

struct Path {
    std::vector<LinkId> links;
    TimePs latency_ps;            // sum over the links
    std::int64_t bottleneck_bps;  // smallest capacity of the links
};

// Router of the core: shortest paths in hops, by breadth-first search. Of several equal next hops, NVSwitches are
// preferred, and the ECMP hash chooses among the rest. A path depends on the network, the links that are up and the
// seed alone.
//
// Tables are built when first needed and kept, as are paths. GPUs do not forward, so switches form components that only
// meet at GPUs (a fabric, the NVSwitch of every server). To a component, destinations attached to the same set of its
// switches are equal: there is one table for each such set, with an entry for each switch of the component; equal
// sets of next hops are stored once. When a cable between switches fails, the tables of its component become stale;
// when a cable to a GPU fails, only the table that the GPU uses changes.
class Routing {
  public:
    // `ecmp_seed` 0 gives the hash of the ns-3 models; any other an unrelated choice at every switch.
    explicit Routing(const Network& network, std::uint32_t ecmp_seed = 0);
    Routing(const Routing&) = delete;
    Routing& operator=(const Routing&) = delete;

    // The path of a flow; stays valid, also when links fail. src == dst gives the empty path. Throws NoPath where there
    // is none.
    const Path& path(NodeId src, NodeId dst, std::uint32_t flow_label);
    // The path of the flow's ACKs, from its `dst` to its `src`.
    const Path& reverse_path(NodeId src, NodeId dst, std::uint32_t flow_label);

    // Links out of `at` that lie on a shortest path to `dst`, in link order, before the choice by hash.
    std::vector<LinkId> next_hops(NodeId at, NodeId dst);

    // Links on any shortest path between two of some nodes, rising.
    std::vector<LinkId> links_between(std::span<const NodeId> nodes);
    // Hops of the shortest paths between all ordered pairs of some nodes; nothing where a pair has no path.
    std::optional<std::int64_t> total_hops(std::span<const NodeId> nodes);

    // Fails or repairs one direction of a cable; later answers respect it. A flow whose path does not change keeps
    // it.
    void set_link_up(LinkId link, bool is_up);
    // Whether any link has ever failed.
    bool has_changed() const { return epoch_ > 0; }
    // Number of breadth-first searches through a component so far.
    std::int64_t tables_built() const { return tables_built_; }

  private:
    using Hops = std::uint16_t;
    using HopSet = const std::vector<LinkId>*;
    // Next hops of the switches of one component to the nodes attached to one set of them.
    struct Table {
        std::uint32_t component;
        std::uint32_t epoch;  // of the component; an older one is stale
        std::vector<NodeId> attached;
        std::vector<Hops> hops;         // [members] to the nearest of the attached switches
        std::vector<HopSet> next_hops;  // [members] nullptr until needed
    };
    struct Component {
        std::uint32_t members = 0;               // switches
        std::uint32_t epoch = 0;                 // counts changes of links between them
        std::set<std::vector<LinkId>> hop_sets;  // of this epoch
    };
    struct Key {
        NodeId src, dst;
        std::uint32_t flow_label;
        bool is_reverse;
        bool operator==(const Key&) const = default;
    };
    struct KeyHash {
        std::size_t operator()(const Key& key) const;
    };
    struct CachedPath {
        const Path* path = nullptr;
        std::uint32_t epoch = 0;  // in which the path was last known to hold
    };

    void find_components();
    void check_node(NodeId node) const;
    const Path& cached_path(const Key& key);
    Path trace(const Key& key);
    std::span<const LinkId> equal_hops(NodeId at, NodeId dst);
    std::span<const LinkId> hops_of_switch(NodeId at, Table& table);
    const std::vector<std::uint32_t>& tables_of(NodeId dst);
    std::uint32_t table_to(const std::vector<NodeId>& attached);
    void build(Table& table);
    Table* table_in(std::uint32_t component, NodeId dst);
    Hops distance(NodeId node, NodeId dst);
    Hops distance_from(NodeId src, NodeId dst);
    void prefer_nvswitches(std::vector<LinkId>& hops) const;

    const Network& network_;
    const std::uint32_t ecmp_seed_;
    std::vector<bool> is_up_;               // [links]
    std::vector<std::uint32_t> component_;  // [nodes] of switches
    std::vector<std::uint32_t> member_;     // [nodes] index of a switch in its component
    std::vector<Component> components_;

    std::map<std::vector<NodeId>, std::uint32_t> table_index_;  // by attached switches
    std::vector<Table> tables_;
    std::vector<std::vector<std::uint32_t>> destination_tables_;  // [nodes] at most one per component; empty: unknown
    std::int64_t tables_built_ = 0;

    std::uint32_t epoch_ = 0;  // counts changes of links
    std::unordered_map<Key, CachedPath, KeyHash> cache_;
    std::deque<Path> paths_;           // owns what cache_ points to or did
    std::vector<LinkId> direct_hops_;  // last answer of equal_hops that is in no table
    std::vector<std::uint32_t> seen_;  // [nodes] number of the search that last reached the node
    std::uint32_t searches_ = 0;
};

// Paths of many flows, one after another; no links for a flow without a path.
struct PathTable {
    std::vector<std::int64_t> offsets;  // [flows + 1]
    std::vector<LinkId> links;
};

// Paths of flows, or of their ACKs. All columns are [flows].
PathTable paths_of(Routing& routing, const std::vector<NodeId>& src, const std::vector<NodeId>& dst,
                   const std::vector<std::uint32_t>& flow_label, bool is_reverse);

}  // namespace netsim
