// The nodes, devices and channels by which ns-3 knows a network of the RoCE model.
#pragma once

#include <string>
#include <vector>

#include "../network.hpp"
#include "roce_net_device.hpp"
#include "roce_node.hpp"
#include "session.hpp"

namespace netsim {

// Owns the simulator of the process while it lives. Nodes are numbered, and their devices ordered, as in the network;
// a node can also be found under its name (ns3::Names) where that has no slash.
class RoceObjects {
  public:
    // Throws MisuseError while another session lives.
    RoceObjects(const Network& network, const std::vector<std::string>& node_names);
    ~RoceObjects();
    RoceObjects(const RoceObjects&) = delete;
    RoceObjects& operator=(const RoceObjects&) = delete;

    // The view lives as long as events run.
    void show(const FabricView& view);

    SteppedSimulator& simulator() const { return session_.simulator(); }
    const FabricView& view() const { return *view_; }
    // Something is connected to a trace source, or was.
    bool is_watched() const { return is_watched_; }
    RoceNode& node(NodeId id) const { return *nodes_[id]; }
    RoceNetDevice& sender(LinkId link) const { return *devices_[link]; }
    RoceNetDevice& receiver(LinkId link) const { return *devices_[reverse_[link]]; }

  private:
    const Network& network_;
    std::vector<LinkId> reverse_;  // [link]
    const FabricView* view_ = nullptr;
    bool is_watched_ = false;
    Session session_;
    std::vector<ns3::Ptr<RoceNode>> nodes_;         // [node]
    std::vector<ns3::Ptr<RoceNetDevice>> devices_;  // [link] that sends by it
    std::vector<ns3::Ptr<RoceChannel>> channels_;   // [cable]
};

}  // namespace netsim
