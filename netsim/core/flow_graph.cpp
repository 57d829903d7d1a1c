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
        waiting[flow] = graph.dep_offsets[flow + 1] - graph.dep_offsets[flow];
        if (waiting[flow] == 0) ready.push_back(flow);
    }
    for (std::size_t done = 0; done < ready.size(); ++done) {
        const FlowIndex flow = ready[done];
        for (std::size_t i = dependents.offsets[flow]; i < dependents.offsets[flow + 1]; ++i) {
            if (--waiting[dependents.flows[i]] == 0) ready.push_back(dependents.flows[i]);
        }
    }
    if (ready.size() == graph.size()) return;
    const auto stuck = std::ranges::find_if(waiting, [](std::int64_t count) { return count > 0; });
    throw GraphError("FlowGraph.deps: found a cycle that holds flow " + std::to_string(stuck - waiting.begin()) +
                     ", expected an acyclic graph");
}

}  // namespace

Dependents dependents_of(const FlowGraph& graph) {
    Dependents result{std::vector<std::size_t>(graph.size() + 1), std::vector<FlowIndex>(graph.deps.size())};
    if (graph.deps.empty()) return result;
    for (const std::int64_t dep : graph.deps) ++result.offsets[static_cast<std::size_t>(dep) + 1];
    for (std::size_t flow = 0; flow < graph.size(); ++flow) result.offsets[flow + 1] += result.offsets[flow];
    std::vector<std::size_t> next(result.offsets.begin(), result.offsets.end() - 1);
    for (FlowIndex flow = 0; flow < graph.size(); ++flow) {
        for (std::int64_t i = graph.dep_offsets[flow]; i < graph.dep_offsets[flow + 1]; ++i) {
            result.flows[next[static_cast<std::size_t>(graph.deps[static_cast<std::size_t>(i)])]++] = flow;
        }
    }
    check_acyclic(graph, result);
    return result;
}

}  // namespace netsim
