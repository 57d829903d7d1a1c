#include "roce_net_device.hpp"

#include <ns3/boolean.h>
#include <ns3/double.h>
#include <ns3/mac48-address.h>
#include <ns3/node.h>
#include <ns3/trace-source-accessor.h>
#include <ns3/uinteger.h>

#include <algorithm>
#include <array>
#include <limits>

#include "roce_frame.hpp"

namespace netsim {

namespace {

constexpr const char* kFrames = "ns3::Packet::TracedCallback";
constexpr const char* kPriorities = "netsim::RoceNetDevice::PriorityTrace";
constexpr auto kReadOnly = ns3::TypeId::ATTR_GET;

ns3::TypeId with_number(ns3::TypeId id, const char* name, const char* help,
                        ns3::Ptr<const ns3::AttributeAccessor> accessor) {
    return id.AddAttribute(name, help, kReadOnly, ns3::UintegerValue(), std::move(accessor),
                           ns3::MakeUintegerChecker<std::uint64_t>());
}

}  // namespace

NS_OBJECT_ENSURE_REGISTERED(RoceNetDevice);
NS_OBJECT_ENSURE_REGISTERED(RoceChannel);

// Attributes show what the model holds; they are set where the model is configured.
ns3::TypeId RoceNetDevice::GetTypeId() {
    using Self = RoceNetDevice;
    using roce::LinkCounters;
    using roce::RedThresholds;
    static const ns3::TypeId id = [] {
        ns3::TypeId type =
            ns3::TypeId("ns3::RoceNetDevice")
                .SetParent<ns3::NetDevice>()
                .SetGroupName("netsim")
                .AddConstructor<Self>()
                .AddAttribute("DataRate", "Rate at which the port sends", kReadOnly, ns3::DataRateValue(),
                              ns3::MakeDataRateAccessor(&Self::GetDataRate), ns3::MakeDataRateChecker())
                .AddAttribute("LinkUp", "Whether the port can send", kReadOnly, ns3::BooleanValue(),
                              ns3::MakeBooleanAccessor(&Self::IsLinkUp), ns3::MakeBooleanChecker())
                .AddAttribute("EcnPMax", "Probability of a mark at EcnKMax", kReadOnly, ns3::DoubleValue(),
                              ns3::MakeDoubleAccessor(&Self::GetMarkingProbability), ns3::MakeDoubleChecker<double>());
        const auto number = [&](const char* name, const char* help, auto getter) {
            with_number(type, name, help, ns3::MakeUintegerAccessor(getter));
        };
        number("Link", "Number in the topology of the link by which it sends", &Self::GetLink);
        number("Mtu", "Bytes of the longest IPv4 packet", &Self::GetMtu);
        number("EcnKMin", "Bytes in a queue up to which nothing is marked",
               &Self::Threshold<&RedThresholds::kmin_bytes>);
        number("EcnKMax", "Bytes in a queue above which all is marked", &Self::Threshold<&RedThresholds::kmax_bytes>);
        number("Headroom", "Bytes for what comes in after a pause was asked for", &Self::GetHeadroom);
        number("QueuedBytes", "Bytes that wait to be sent, of all priorities", &Self::GetQueuedBytes);
        number("PausedPriorities", "A bit for each that may not be sent now", &Self::GetPausedPriorities);
        number("SentPackets", "Packets sent up to now", &Self::Count<&LinkCounters::packets>);
        number("SentBytes", "Bytes sent up to now", &Self::Count<&LinkCounters::wire_bytes>);
        number("Marks", "Packets marked by ECN", &Self::Count<&LinkCounters::marks>);
        number("Drops", "Packets lost, also at the far end", &Self::Count<&LinkCounters::drops>);
        number("Pauses", "Pause frames obeyed", &Self::Count<&LinkCounters::pauses>);
        number("PausedTimePs", "Time in which some priority was paused", &Self::Count<&LinkCounters::paused_ps>);
        const auto trace = [&](const char* name, const char* help, auto source, const char* signature) {
            type.AddTraceSource(name, help, ns3::MakeTraceSourceAccessor(source), signature);
        };
        trace("Enqueue", "A packet joins a queue; data of the node itself waits outside of queues", &Self::enqueued_,
              kFrames);
        trace("Dequeue", "A packet leaves a queue", &Self::dequeued_, kFrames);
        trace("PhyTxBegin", "The serialisation of a packet begins", &Self::sending_, kFrames);
        trace("PhyRxEnd", "The last bit of a packet is here", &Self::received_, kFrames);
        trace("Drop", "A packet is lost, also at the far end", &Self::dropped_, kFrames);
        trace("Mark", "A packet is marked by ECN", &Self::marked_, kFrames);
        trace("Pause", "The port may not send a priority any more", &Self::paused_, kPriorities);
        trace("Resume", "The port may send a priority again", &Self::resumed_, kPriorities);
        return type;
    }();
    return id;
}

void RoceNetDevice::Bind(const FabricView& view, LinkId out, bool& is_watched) {
    view_ = &view;
    out_ = out;
    ForAllTraces([&](auto& trace) { trace.note_in(is_watched); });
}

void RoceNetDevice::SetChannel(ns3::Ptr<RoceChannel> channel) { channel_ = std::move(channel); }

ns3::Ptr<ns3::Channel> RoceNetDevice::GetChannel() const { return channel_; }

ns3::Address RoceNetDevice::GetAddress() const {
    if (node_ == nullptr) return ns3::Mac48Address();
    const std::array<std::uint8_t, 6> bytes = mac_address(node_->GetId());
    ns3::Mac48Address address;
    address.CopyFrom(bytes.data());
    return address;
}

ns3::Address RoceNetDevice::GetBroadcast() const { return ns3::Mac48Address::GetBroadcast(); }

ns3::Ptr<ns3::Node> RoceNetDevice::GetNode() const { return node_; }

void RoceNetDevice::SetNode(ns3::Ptr<ns3::Node> node) { node_ = std::move(node); }

std::uint16_t RoceNetDevice::GetMtu() const {
    if (view_ == nullptr) return 0;
    const std::int64_t longest = view_->parameters().wire.mtu_bytes + kLongestIpv4HeadersBytes;
    return static_cast<std::uint16_t>(std::min<std::int64_t>(longest, std::numeric_limits<std::uint16_t>::max()));
}

ns3::DataRate RoceNetDevice::GetDataRate() const {
    return ns3::DataRate(view_ == nullptr ? 0 : static_cast<std::uint64_t>(view_->port(out_).capacity_bps));
}

std::uint64_t RoceNetDevice::GetQueuedBytes() const {
    return view_ == nullptr ? 0 : static_cast<std::uint64_t>(view_->queued_bytes(out_));
}

std::uint64_t RoceNetDevice::GetPausedPriorities() const { return view_ == nullptr ? 0 : view_->port(out_).paused; }

std::uint64_t RoceNetDevice::GetHeadroom() const {
    if (view_ == nullptr || view_->port(out_).from != roce::NodeRole::packet_switch) return 0;
    return static_cast<std::uint64_t>(view_->parameters().headroom_bytes[view_->port(out_).reverse]);
}

void RoceNetDevice::DoDispose() {
    view_ = nullptr;
    node_ = nullptr;
    channel_ = nullptr;
    ForAllTraces([](auto& trace) { trace.forget_flag(); });
    ns3::NetDevice::DoDispose();
}

ns3::TypeId RoceChannel::GetTypeId() {
    static const ns3::TypeId id =
        ns3::TypeId("ns3::RoceChannel")
            .SetParent<ns3::Channel>()
            .SetGroupName("netsim")
            .AddConstructor<RoceChannel>()
            .AddAttribute("Delay", "Propagation from the first device to the second", kReadOnly,
                          ns3::TimeValue(ns3::Time(0)), ns3::MakeTimeAccessor(&RoceChannel::GetDelay),
                          ns3::MakeTimeChecker());
    return id;
}

void RoceChannel::Bind(const FabricView& view, ns3::Ptr<RoceNetDevice> first, ns3::Ptr<RoceNetDevice> second) {
    view_ = &view;
    ends_ = {std::move(first), std::move(second)};
    ends_.first->SetChannel(this);
    ends_.second->SetChannel(this);
}

ns3::Time RoceChannel::GetDelay() const {
    return ns3::Time(view_ == nullptr ? 0 : view_->port(ends_.first->out_link()).latency_ps);
}

void RoceChannel::DoDispose() {
    view_ = nullptr;
    ends_ = {};
    ns3::Channel::DoDispose();
}

}  // namespace netsim
