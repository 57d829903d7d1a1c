// A host or switch of the RoCE model, as ns-3 shows it.
#pragma once

#include <ns3/ipv4-address.h>
#include <ns3/node.h>

#include "fabric_view.hpp"
#include "noted_trace.hpp"

namespace netsim {

// Its number in NodeList is that in the topology.
class RoceNode : public ns3::Node {
  public:
    // Number of the submitted graph, flow in it.
    using FlowTrace = NotedTrace<std::uint32_t, std::uint32_t>;

    static ns3::TypeId GetTypeId();

    // View and flag outlive the node, or are no more used once it is disposed of.
    void Bind(const FabricView& view, roce::NodeRole role, bool& is_watched);

    FlowTrace& delivered() { return delivered_; }        // the last byte of a flow is here
    FlowTrace& acknowledged() { return acknowledged_; }  // the last acknowledgement of a flow is here

  protected:
    void DoDispose() override;

  private:
    ns3::Ipv4Address GetAddress() const;
    roce::NodeRole GetRole() const { return role_; }
    bool IsSharedBuffer() const { return view_ != nullptr && role_ == roce::NodeRole::packet_switch; }
    std::uint64_t GetBufferSize() const;
    bool HasPfc() const;

    const FabricView* view_ = nullptr;
    roce::NodeRole role_ = roce::NodeRole::host;
    FlowTrace delivered_, acknowledged_;
};

}  // namespace netsim
