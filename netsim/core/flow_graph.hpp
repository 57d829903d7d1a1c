// A flow graph as submitted, with the edges reversed for execution.
#pragma once

#include <cstdint>
#include <vector>

#include "types.hpp"

namespace netsim {

using FlowIndex = std::uint32_t;
inline constexpr std::int64_t kNoFlow = -1;

// Arrays of netsim.flow.FlowGraph, which documents and checks them; only cycles are found here.
struct FlowGraph {
    std::vector<std::int32_t> src, dst;
    std::vector<std::int64_t> size_bytes;
    std::vector<TimePs> ready_ps, delay_ps;
    std::vector<std::int64_t> dep_offsets, deps;
    std::vector<std::uint32_t> flow_label;
    std::vector<bool> notify;
    std::vector<std::int64_t> max_rate_bps;  // 0: none
    std::vector<std::int64_t> after;         // kNoFlow: none

    std::size_t size() const { return src.size(); }
};

// Flows that wait for a flow: the arrival of flow i releases flows[offsets[i] .. offsets[i + 1]), and next[i] may go
// when its last byte has left (kNoFlow: none).
struct Dependents {
    std::vector<std::size_t> offsets;
    std::vector<FlowIndex> flows;
    std::vector<std::int64_t> next;
};

// Throws GraphError where the dependencies have a cycle, or two flows come after the same one.
Dependents dependents_of(const FlowGraph& graph);

}  // namespace netsim
