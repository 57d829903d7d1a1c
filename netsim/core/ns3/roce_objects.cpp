#include "roce_objects.hpp"

#include <ns3/names.h>

namespace netsim {

RoceObjects::RoceObjects(const Network& network, const std::vector<std::string>& node_names)
    : network_(network), reverse_(reverse_links(network)), devices_(network.link_count()) {
    if (node_names.size() != network.node_count()) {
        throw MisuseError("ns3: found " + std::to_string(node_names.size()) + " node names, expected one for each of " +
                          std::to_string(network.node_count()) + " nodes");
    }
    for (NodeId id = 0; id < network.node_count(); ++id) {
        nodes_.push_back(ns3::CreateObject<RoceNode>());
        const std::string& name = node_names[id];
        if (!name.empty() && name.find('/') == std::string::npos) ns3::Names::Add(name, nodes_[id]);
        for (const LinkId link : network.out_links(id)) {
            devices_[link] = ns3::CreateObject<RoceNetDevice>();
            nodes_[id]->AddDevice(devices_[link]);
        }
    }
    for (LinkId link = 0; link < network.link_count(); ++link) {
        if (link < reverse_[link]) channels_.push_back(ns3::CreateObject<RoceChannel>());
    }
    simulator().run_until(0);  // what ns-3 does to initialise nodes and devices
}

RoceObjects::~RoceObjects() { ns3::Names::Clear(); }

void RoceObjects::show(const FabricView& view) {
    view_ = &view;
    for (LinkId link = 0; link < devices_.size(); ++link) devices_[link]->Bind(view, link, is_watched_);
    for (NodeId id = 0; id < nodes_.size(); ++id) {
        roce::NodeRole role = roce::NodeRole::host;
        if (!network_.out_links(id).empty()) role = view.port(network_.out_links(id).front()).from;
        nodes_[id]->Bind(view, role, is_watched_);
    }
    std::size_t cable = 0;
    for (LinkId link = 0; link < devices_.size(); ++link) {
        if (link < reverse_[link]) channels_[cable++]->Bind(view, devices_[link], devices_[reverse_[link]]);
    }
}

}  // namespace netsim
