#include "roce_node.hpp"

#include <ns3/boolean.h>
#include <ns3/enum.h>
#include <ns3/trace-source-accessor.h>
#include <ns3/uinteger.h>

#include "../ecmp.hpp"

namespace netsim {

namespace {

constexpr const char* kFlows = "netsim::RoceNode::FlowTrace";

}  // namespace

NS_OBJECT_ENSURE_REGISTERED(RoceNode);

// Attributes show what the model holds; they are set where the model is configured.
ns3::TypeId RoceNode::GetTypeId() {
    using Self = RoceNode;
    constexpr auto kReadOnly = ns3::TypeId::ATTR_GET;
    static const ns3::TypeId id =
        ns3::TypeId("ns3::RoceNode")
            .SetParent<ns3::Node>()
            .SetGroupName("netsim")
            .AddConstructor<Self>()
            .AddAttribute("Address", "IPv4 address in the frames of captures", kReadOnly, ns3::Ipv4AddressValue(),
                          ns3::MakeIpv4AddressAccessor(&Self::GetAddress), ns3::MakeIpv4AddressChecker())
            .AddAttribute("Role", "What it does with packets", kReadOnly, ns3::EnumValue(roce::NodeRole::host),
                          ns3::MakeEnumAccessor<roce::NodeRole>(&Self::GetRole),
                          ns3::MakeEnumChecker(roce::NodeRole::host, "Host", roce::NodeRole::packet_switch, "Switch",
                                               roce::NodeRole::nvswitch, "NvSwitch"))
            .AddAttribute("BufferSize", "Bytes of the memory that the ports of a switch share; 0 elsewhere", kReadOnly,
                          ns3::UintegerValue(), ns3::MakeUintegerAccessor(&Self::GetBufferSize),
                          ns3::MakeUintegerChecker<std::uint64_t>())
            .AddAttribute("Pfc", "Whether it pauses senders instead of dropping", kReadOnly, ns3::BooleanValue(),
                          ns3::MakeBooleanAccessor(&Self::HasPfc), ns3::MakeBooleanChecker())
            .AddTraceSource("Delivered", "The last byte of a flow is here",
                            ns3::MakeTraceSourceAccessor(&Self::delivered_), kFlows)
            .AddTraceSource("QueuePairDone", "The last acknowledgement of a flow is here",
                            ns3::MakeTraceSourceAccessor(&Self::acknowledged_), kFlows);
    return id;
}

void RoceNode::Bind(const FabricView& view, roce::NodeRole role, bool& is_watched) {
    view_ = &view;
    role_ = role;
    delivered_.note_in(is_watched);
    acknowledged_.note_in(is_watched);
}

ns3::Ipv4Address RoceNode::GetAddress() const { return ns3::Ipv4Address(node_address(GetId())); }

std::uint64_t RoceNode::GetBufferSize() const {
    return IsSharedBuffer() ? static_cast<std::uint64_t>(view_->parameters().switch_buffer_bytes) : 0;
}

bool RoceNode::HasPfc() const { return IsSharedBuffer() && view_->parameters().has_pfc; }

void RoceNode::DoDispose() {
    view_ = nullptr;
    delivered_.forget_flag();
    acknowledged_.forget_flag();
    ns3::Node::DoDispose();
}

}  // namespace netsim
