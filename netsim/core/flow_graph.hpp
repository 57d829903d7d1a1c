// A flow graph as submitted, with the edges reversed for execution.
#pragma once

#include <cstdint>
#include <vector>

#include "types.hpp"

namespace netsim {

using FlowIndex = std::uint32_t;

// Arrays of netsim.flow.FlowGraph, which documents and checks them; only cycles are found here.
struct FlowGraph {
    std::vector<std::int32_t> src, dst;
    std::vector<std::int64_t> size_bytes;
    std::vector<TimePs> ready_ps, delay_ps;
    std::vector<std::int64_t> dep_offsets, deps;
    std::vector<std::uint32_t> flow_label;
    std::vector<bool> notify;
    std::vector<std::int64_t> max_rate_bps;  // 0: none

    std::size_t size() const { return src.size(); }
};

// Flows that wait for a flow: flow i releases flows[offsets[i] .. offsets[i + 1]).
struct Dependents {
    std::vector<std::size_t> offsets;
    std::vector<FlowIndex> flows;
};

// Throws GraphError where the dependencies have a cycle.
Dependents dependents_of(const FlowGraph& graph);

}  // namespace netsim
