// Flow graphs that differ only by which of equal nodes and links they use have one canonical form.
#pragma once

#include <cstdint>
#include <vector>

#include "flow_graph.hpp"
#include "network.hpp"
#include "routing.hpp"

namespace netsim {

struct CanonicalGraph {
    // Equal for two graphs on one network if one becomes the other by renaming nodes and links, routes of data and
    // ACKs, capacities, latencies, and what surrounds each switch included.
    std::vector<std::int64_t> form;
    std::vector<LinkId> links;  // in order of first use, which is their new name
};

// `names_by_use` false keeps the names: for fabrics that choose routes while running, where position matters.
CanonicalGraph canonical_graph(const Network& network, Routing& routing, const FlowGraph& graph, bool names_by_use);

}  // namespace netsim
