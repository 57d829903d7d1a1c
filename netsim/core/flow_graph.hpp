// A flow graph as submitted, with the edges reversed for execution.
#pragma once

#include <cstdint>
#include <netsim/types.hpp>
#include <span>
#include <vector>

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
    std::vector<std::int64_t> credit_offsets, credits;
    std::vector<std::uint8_t> priority;
    std::uint8_t traffic = 0;

    std::size_t size() const { return src.size(); }
};

// Flow i leads to flows[offsets[i] .. offsets[i + 1]).
struct Edges {
    std::vector<std::size_t> offsets;
    std::vector<FlowIndex> flows;

    std::span<const FlowIndex> of(FlowIndex flow) const {
        return std::span(flows).subspan(offsets[flow], offsets[flow + 1] - offsets[flow]);
    }
};

// Flows that wait for a flow: its arrival releases `data`, the credit it sends back `credit`, and next[i] may go when
// its last byte has left (kNoFlow: none).
struct Dependents {
    Edges data, credit;
    std::vector<std::int64_t> next;
};

// Throws GraphError where the dependencies have a cycle, or two flows come after the same one.
Dependents dependents_of(const FlowGraph& graph);

}  // namespace netsim
