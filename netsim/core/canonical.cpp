#include "canonical.hpp"

#include <unordered_map>

namespace netsim {

namespace {

class Naming {
  public:
    Naming(const Network& network, bool names_by_use, CanonicalGraph& result)
        : network_(network), names_by_use_(names_by_use), result_(result) {}

    void write(const Path& path) {
        result_.form.push_back(static_cast<std::int64_t>(path.links.size()));
        for (const LinkId link : path.links) write_link(link);
    }
    void write_node(NodeId node) {
        const auto [entry, is_new] = nodes_.try_emplace(node, static_cast<std::int64_t>(nodes_.size()));
        result_.form.push_back(names_by_use_ ? entry->second : node);
        if (!is_new) return;
        // Thresholds of a switch depend on all its inputs, used or not.
        std::int64_t capacity_bps = 0;
        TimePs latency_ps = 0;
        for (const LinkId input : network_.in_links(node)) {
            capacity_bps += network_.link(input).capacity_bps;
            latency_ps += network_.link(input).latency_ps;
        }
        const auto inputs = static_cast<std::int64_t>(network_.in_links(node).size());
        const std::int64_t kind = network_.is_inside_server(node) ? 2 : network_.forwards(node);
        result_.form.insert(result_.form.end(), {kind, inputs, capacity_bps, latency_ps});
    }

  private:
    void write_link(LinkId link) {
        const auto [entry, is_new] = links_.try_emplace(link, static_cast<std::int64_t>(links_.size()));
        result_.form.push_back(names_by_use_ ? entry->second : link);
        if (!is_new) return;
        result_.links.push_back(link);
        const Link& cable = network_.link(link);
        result_.form.insert(result_.form.end(), {cable.capacity_bps, cable.latency_ps});
        write_node(cable.src);
        write_node(cable.dst);
    }

    const Network& network_;
    bool names_by_use_;
    CanonicalGraph& result_;
    std::unordered_map<LinkId, std::int64_t> links_;
    std::unordered_map<NodeId, std::int64_t> nodes_;
};

template <typename T>
void append(std::vector<std::int64_t>& form, const std::vector<T>& values) {
    form.push_back(static_cast<std::int64_t>(values.size()));
    for (const T value : values) form.push_back(static_cast<std::int64_t>(value));
}

}  // namespace

CanonicalGraph canonical_graph(const Network& network, Routing& routing, const FlowGraph& graph, bool names_by_use) {
    CanonicalGraph result;
    Naming naming(network, names_by_use, result);
    for (FlowIndex flow = 0; flow < graph.size(); ++flow) {
        const auto src = static_cast<NodeId>(graph.src[flow]);
        const auto dst = static_cast<NodeId>(graph.dst[flow]);
        naming.write(routing.path(src, dst, graph.flow_label[flow]));
        naming.write(routing.reverse_path(src, dst, graph.flow_label[flow]));
        naming.write_node(src);
        naming.write_node(dst);
    }
    append(result.form, graph.size_bytes);
    append(result.form, graph.ready_ps);
    append(result.form, graph.delay_ps);
    append(result.form, graph.dep_offsets);
    append(result.form, graph.deps);
    append(result.form, graph.notify);
    append(result.form, graph.max_rate_bps);
    append(result.form, graph.after);
    append(result.form, graph.credit_offsets);
    append(result.form, graph.credits);
    append(result.form, graph.priority);
    return result;
}

}  // namespace netsim
