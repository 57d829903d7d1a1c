// One end of a cable of the RoCE model, as ns-3 shows it.
#pragma once

#include <ns3/channel.h>
#include <ns3/data-rate.h>
#include <ns3/net-device.h>
#include <ns3/packet.h>
#include <ns3/traced-callback.h>

#include <cstdint>
#include <utility>

#include "../types.hpp"

namespace netsim {

// What the objects of ns-3 show of a model that keeps all state itself. Links are directed, as in the model.
class LinkView {
  public:
    virtual ~LinkView() = default;
    virtual std::int64_t rate_bps(LinkId link) const = 0;
    virtual TimePs latency_ps(LinkId link) const = 0;
    virtual bool is_up(LinkId link) const = 0;
    virtual std::int64_t queued_bytes(LinkId link) const = 0;
    virtual std::int64_t sent_bytes(LinkId link) const = 0;
    virtual std::int64_t marks(LinkId link) const = 0;
    virtual std::int64_t drops(LinkId link) const = 0;
    virtual std::int64_t pauses(LinkId link) const = 0;
};

class RoceChannel;

// A port: sends by one directed link and receives by the other. Holds no state of the model; attributes are read from
// it. It carries no packets of other ns-3 models: `Send` refuses. Trace sources with packets get a RoCEv2 or
// PFC frame that is only made where something is connected.
class RoceNetDevice : public ns3::NetDevice {
  public:
    using FrameTrace = ns3::TracedCallback<ns3::Ptr<const ns3::Packet>>;
    using PriorityTrace = ns3::TracedCallback<std::uint8_t>;

    static ns3::TypeId GetTypeId();

    // The view outlives the device.
    void Bind(const LinkView& view, LinkId out, std::uint16_t mtu_bytes);
    void SetChannel(ns3::Ptr<RoceChannel> channel);

    FrameTrace& enqueued() { return enqueued_; }
    FrameTrace& dequeued() { return dequeued_; }  // its serialisation begins
    FrameTrace& received() { return received_; }  // its last bit is here
    FrameTrace& dropped() { return dropped_; }
    FrameTrace& marked() { return marked_; }
    PriorityTrace& paused() { return paused_; }  // a pause frame takes effect on what this port sends
    PriorityTrace& resumed() { return resumed_; }

    void SetIfIndex(std::uint32_t index) override { if_index_ = index; }
    std::uint32_t GetIfIndex() const override { return if_index_; }
    ns3::Ptr<ns3::Channel> GetChannel() const override;
    void SetAddress(ns3::Address address) override { address_ = address; }
    ns3::Address GetAddress() const override { return address_; }
    bool SetMtu(std::uint16_t) override { return false; }  // a parameter of the model
    std::uint16_t GetMtu() const override { return mtu_bytes_; }
    bool IsLinkUp() const override { return view_ != nullptr && view_->is_up(out_); }
    void AddLinkChangeCallback(ns3::Callback<void> callback) override { link_change_.ConnectWithoutContext(callback); }
    bool IsBroadcast() const override { return false; }
    ns3::Address GetBroadcast() const override;
    bool IsMulticast() const override { return false; }
    ns3::Address GetMulticast(ns3::Ipv4Address) const override { return GetBroadcast(); }
    ns3::Address GetMulticast(ns3::Ipv6Address) const override { return GetBroadcast(); }
    bool IsBridge() const override { return false; }
    bool IsPointToPoint() const override { return true; }
    bool Send(ns3::Ptr<ns3::Packet>, const ns3::Address&, std::uint16_t) override { return false; }
    bool SendFrom(ns3::Ptr<ns3::Packet>, const ns3::Address&, const ns3::Address&, std::uint16_t) override {
        return false;
    }
    ns3::Ptr<ns3::Node> GetNode() const override;
    void SetNode(ns3::Ptr<ns3::Node> node) override;
    bool NeedsArp() const override { return false; }
    void SetReceiveCallback(ReceiveCallback) override {}
    void SetPromiscReceiveCallback(PromiscReceiveCallback) override {}
    bool SupportsSendFrom() const override { return false; }

    ns3::TracedCallback<>& link_changed() { return link_change_; }

  protected:
    void DoDispose() override;

  private:
    ns3::DataRate GetDataRate() const;
    template <std::int64_t (LinkView::*Property)(LinkId) const>
    std::uint64_t Get() const {
        return view_ == nullptr ? 0 : static_cast<std::uint64_t>((view_->*Property)(out_));
    }

    const LinkView* view_ = nullptr;
    LinkId out_ = 0;
    std::uint16_t mtu_bytes_ = 0;
    std::uint32_t if_index_ = 0;
    ns3::Address address_;
    ns3::Ptr<ns3::Node> node_;
    ns3::Ptr<RoceChannel> channel_;
    FrameTrace enqueued_, dequeued_, received_, dropped_, marked_;
    PriorityTrace paused_, resumed_;
    ns3::TracedCallback<> link_change_;
};

// A cable between two ports.
class RoceChannel : public ns3::Channel {
  public:
    static ns3::TypeId GetTypeId();

    // The view outlives the channel.
    void Bind(const LinkView& view, LinkId link, ns3::Ptr<RoceNetDevice> first, ns3::Ptr<RoceNetDevice> second);

    std::size_t GetNDevices() const override { return ends_.first == nullptr ? 0 : 2; }
    ns3::Ptr<ns3::NetDevice> GetDevice(std::size_t i) const override { return i == 0 ? ends_.first : ends_.second; }

  protected:
    void DoDispose() override;

  private:
    ns3::Time GetDelay() const;

    const LinkView* view_ = nullptr;
    LinkId link_ = 0;
    std::pair<ns3::Ptr<RoceNetDevice>, ns3::Ptr<RoceNetDevice>> ends_;
};

}  // namespace netsim
