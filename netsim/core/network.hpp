// The immutable network: nodes, directed links, adjacency.
#pragma once

#include <netsim/types.hpp>
#include <span>
#include <vector>

namespace netsim {

// Codes as in netsim.topology.NodeKind; the core only tells GPUs and hosts, NVSwitches, PCIe switches and other
// switches apart.
enum class NodeKind : std::uint8_t {
    gpu = 0,
    nvswitch = 1,
    leaf = 2,
    spine = 3,
    fabric_switch = 4,
    core = 5,
    host = 6,
    pcie_switch = 7
};

struct Link {
    NodeId src;
    NodeId dst;
    std::int64_t capacity_bps;
    TimePs latency_ps;
};

class Network {
  public:
    Network(std::vector<NodeKind> nodes, std::vector<Link> links);

    std::size_t node_count() const { return nodes_.size(); }
    std::size_t link_count() const { return links_.size(); }
    const Link& link(LinkId id) const { return links_[id]; }
    bool is_nvswitch(NodeId node) const { return nodes_[node] == NodeKind::nvswitch; }
    // Inside a server: lossless by credits, and without the headers of a NIC.
    bool is_inside_server(NodeId node) const { return is_nvswitch(node) || nodes_[node] == NodeKind::pcie_switch; }
    // GPUs and hosts never carry transit traffic.
    bool forwards(NodeId node) const { return nodes_[node] != NodeKind::gpu && nodes_[node] != NodeKind::host; }

    // In the order of the link list.
    std::span<const LinkId> out_links(NodeId node) const { return slice(out_, out_offsets_, node); }
    std::span<const LinkId> in_links(NodeId node) const { return slice(in_, in_offsets_, node); }

  private:
    static std::span<const LinkId> slice(const std::vector<LinkId>& ids, const std::vector<std::size_t>& offsets,
                                         NodeId node) {
        return std::span(ids).subspan(offsets[node], offsets[node + 1] - offsets[node]);
    }

    std::vector<NodeKind> nodes_;
    std::vector<Link> links_;
    std::vector<std::size_t> out_offsets_, in_offsets_;
    std::vector<LinkId> out_, in_;
};

// The other direction of every link's cable: of several links between two nodes, the k-th goes with the k-th back.
// Throws where a link has none.
std::vector<LinkId> reverse_links(const Network& network);

}  // namespace netsim
