#include "flow_graph.hpp"

#include <algorithm>
#include <string>

namespace netsim {

namespace {

// Kahn's algorithm: what cannot be ordered lies on a cycle or behind one.
void check_acyclic(const FlowGraph& graph, const Dependents& dependents) {
    std::vector<std::int64_t> waiting(graph.size());
    std::vector<FlowIndex> ready;
    for (FlowIndex flow = 0; flow < graph.size(); ++flow) {
        waiting[flow] = graph.dep_offsets[flow + 1] - graph.dep_offsets[flow] + graph.credit_offsets[flow + 1] -
                        graph.credit_offsets[flow] + (graph.after[flow] != kNoFlow);
        if (waiting[flow] == 0) ready.push_back(flow);
    }
    for (std::size_t done = 0; done < ready.size(); ++done) {
        const FlowIndex flow = ready[done];
        const auto release = [&](std::span<const FlowIndex> flows) {
            for (const FlowIndex dependent : flows) {
                if (--waiting[dependent] == 0) ready.push_back(dependent);
            }
        };
        release(dependents.data.of(flow));
        release(dependents.credit.of(flow));
        const std::int64_t next = dependents.next[flow];
        if (next != kNoFlow && --waiting[static_cast<std::size_t>(next)] == 0) {
            ready.push_back(static_cast<FlowIndex>(next));
        }
    }
    if (ready.size() == graph.size()) return;
    const auto stuck = std::ranges::find_if(waiting, [](std::int64_t count) { return count > 0; });
    throw GraphError("FlowGraph.deps: found a cycle that holds flow " + std::to_string(stuck - waiting.begin()) +
                     ", expected an acyclic graph");
}

std::vector<std::int64_t> next_of(const FlowGraph& graph) {
    std::vector<std::int64_t> next(graph.size(), kNoFlow);
    for (FlowIndex flow = 0; flow < graph.size(); ++flow) {
        if (graph.after[flow] == kNoFlow) continue;
        std::int64_t& follower = next[static_cast<std::size_t>(graph.after[flow])];
        if (follower != kNoFlow) {
            throw GraphError("FlowGraph.after: found flows " + std::to_string(follower) + " and " +
                             std::to_string(flow) + " after the same flow, expected one at most");
        }
        follower = flow;
    }
    return next;
}

Edges reversed(const std::vector<std::int64_t>& offsets, const std::vector<std::int64_t>& edges, std::size_t flows) {
    Edges result{std::vector<std::size_t>(flows + 1), std::vector<FlowIndex>(edges.size())};
    for (const std::int64_t from : edges) ++result.offsets[static_cast<std::size_t>(from) + 1];
    for (std::size_t flow = 0; flow < flows; ++flow) result.offsets[flow + 1] += result.offsets[flow];
    std::vector<std::size_t> next(result.offsets.begin(), result.offsets.end() - 1);
    for (FlowIndex flow = 0; flow < flows; ++flow) {
        for (std::int64_t i = offsets[flow]; i < offsets[flow + 1]; ++i) {
            result.flows[next[static_cast<std::size_t>(edges[static_cast<std::size_t>(i)])]++] = flow;
        }
    }
    return result;
}

}  // namespace

Dependents dependents_of(const FlowGraph& graph) {
    Dependents result{reversed(graph.dep_offsets, graph.deps, graph.size()),
                      reversed(graph.credit_offsets, graph.credits, graph.size()), next_of(graph)};
    check_acyclic(graph, result);
    return result;
}

}  // namespace netsim
