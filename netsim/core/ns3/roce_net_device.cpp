#include "roce_net_device.hpp"

#include <ns3/mac48-address.h>
#include <ns3/node.h>
#include <ns3/nstime.h>
#include <ns3/trace-source-accessor.h>
#include <ns3/uinteger.h>

namespace netsim {

namespace {

constexpr const char* kFrames = "ns3::Packet::TracedCallback";
constexpr const char* kPriorities = "netsim::RoceNetDevice::PriorityTrace";

// Attributes show what the model holds; they are set where the model is configured.
ns3::TypeId with_count(ns3::TypeId id, const char* name, const char* help,
                       ns3::Ptr<const ns3::AttributeAccessor> accessor) {
    return id.AddAttribute(name, help, ns3::TypeId::ATTR_GET, ns3::UintegerValue(), accessor,
                           ns3::MakeUintegerChecker<std::uint64_t>());
}

}  // namespace

NS_OBJECT_ENSURE_REGISTERED(RoceNetDevice);
NS_OBJECT_ENSURE_REGISTERED(RoceChannel);

ns3::TypeId RoceNetDevice::GetTypeId() {
    using Self = RoceNetDevice;
    static const ns3::TypeId id = [] {
        ns3::TypeId type =
            ns3::TypeId("ns3::RoceNetDevice")
                .SetParent<ns3::NetDevice>()
                .SetGroupName("netsim")
                .AddConstructor<Self>()
                .AddAttribute("DataRate", "Rate at which the port sends", ns3::TypeId::ATTR_GET, ns3::DataRateValue(),
                              ns3::MakeDataRateAccessor(&Self::GetDataRate), ns3::MakeDataRateChecker());
        with_count(type, "QueuedBytes", "Bytes that wait to be sent, of all priorities",
                   ns3::MakeUintegerAccessor(&Self::Get<&LinkView::queued_bytes>));
        with_count(type, "SentBytes", "Bytes on the wire up to now",
                   ns3::MakeUintegerAccessor(&Self::Get<&LinkView::sent_bytes>));
        with_count(type, "Marks", "Packets marked by ECN", ns3::MakeUintegerAccessor(&Self::Get<&LinkView::marks>));
        with_count(type, "Drops", "Packets lost", ns3::MakeUintegerAccessor(&Self::Get<&LinkView::drops>));
        with_count(type, "Pauses", "Pause frames obeyed", ns3::MakeUintegerAccessor(&Self::Get<&LinkView::pauses>));
        return type
            .AddTraceSource("Enqueue", "A packet joins a queue of the port",
                            ns3::MakeTraceSourceAccessor(&Self::enqueued_), kFrames)
            .AddTraceSource("Dequeue", "The serialisation of a packet begins",
                            ns3::MakeTraceSourceAccessor(&Self::dequeued_), kFrames)
            .AddTraceSource("Receive", "The last bit of a packet is here",
                            ns3::MakeTraceSourceAccessor(&Self::received_), kFrames)
            .AddTraceSource("Drop", "A packet is lost", ns3::MakeTraceSourceAccessor(&Self::dropped_), kFrames)
            .AddTraceSource("Mark", "A packet is marked by ECN", ns3::MakeTraceSourceAccessor(&Self::marked_), kFrames)
            .AddTraceSource("Pause", "The port may not send a priority any more",
                            ns3::MakeTraceSourceAccessor(&Self::paused_), kPriorities)
            .AddTraceSource("Resume", "The port may send a priority again",
                            ns3::MakeTraceSourceAccessor(&Self::resumed_), kPriorities);
    }();
    return id;
}

void RoceNetDevice::Bind(const LinkView& view, LinkId out, std::uint16_t mtu_bytes) {
    view_ = &view;
    out_ = out;
    mtu_bytes_ = mtu_bytes;
}

void RoceNetDevice::SetChannel(ns3::Ptr<RoceChannel> channel) { channel_ = std::move(channel); }

ns3::Ptr<ns3::Channel> RoceNetDevice::GetChannel() const { return channel_; }

ns3::Address RoceNetDevice::GetBroadcast() const { return ns3::Mac48Address::GetBroadcast(); }

ns3::Ptr<ns3::Node> RoceNetDevice::GetNode() const { return node_; }

void RoceNetDevice::SetNode(ns3::Ptr<ns3::Node> node) { node_ = std::move(node); }

ns3::DataRate RoceNetDevice::GetDataRate() const { return ns3::DataRate(Get<&LinkView::rate_bps>()); }

void RoceNetDevice::DoDispose() {
    view_ = nullptr;
    node_ = nullptr;
    channel_ = nullptr;
    ns3::NetDevice::DoDispose();
}

ns3::TypeId RoceChannel::GetTypeId() {
    static const ns3::TypeId id =
        ns3::TypeId("ns3::RoceChannel")
            .SetParent<ns3::Channel>()
            .SetGroupName("netsim")
            .AddConstructor<RoceChannel>()
            .AddAttribute("Delay", "Propagation from the first device to the second", ns3::TypeId::ATTR_GET,
                          ns3::TimeValue(ns3::Time(0)), ns3::MakeTimeAccessor(&RoceChannel::GetDelay),
                          ns3::MakeTimeChecker());
    return id;
}

void RoceChannel::Bind(const LinkView& view, LinkId link, ns3::Ptr<RoceNetDevice> first,
                       ns3::Ptr<RoceNetDevice> second) {
    view_ = &view;
    link_ = link;
    ends_ = {std::move(first), std::move(second)};
    ends_.first->SetChannel(this);
    ends_.second->SetChannel(this);
}

ns3::Time RoceChannel::GetDelay() const { return ns3::Time(view_ == nullptr ? 0 : view_->latency_ps(link_)); }

void RoceChannel::DoDispose() {
    view_ = nullptr;
    ends_ = {};
    ns3::Channel::DoDispose();
}

}  // namespace netsim
