#include "captures.hpp"

#include <ns3/boolean.h>
#include <ns3/node.h>
#include <ns3/simulator.h>
#include <ns3/trace-helper.h>
#include <ns3/uinteger.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace netsim {

namespace {

void write_frame(ns3::Ptr<ns3::PcapFileWrapper> file, ns3::Ptr<const ns3::Packet> frame) {
    file->Write(ns3::Simulator::Now(), frame);
}

}  // namespace

void Captures::add(RoceNetDevice& device, const std::string& folder, std::uint32_t most_bytes) {
    const std::string name = std::to_string(device.GetNode()->GetId()) + "-" + std::to_string(device.GetIfIndex());
    if (std::ranges::find(devices_, &device) != devices_.end()) {
        throw MisuseError("pcap: found a second capture of device " + name + ", expected at most one");
    }
    const auto file = ns3::CreateObjectWithAttributes<ns3::PcapFileWrapper>(
        "NanosecMode", ns3::BooleanValue(true), "CaptureSize", ns3::UintegerValue(most_bytes));
    const std::string path = folder + "/" + name + ".pcap";
    file->Open(path, std::ios::out);
    if (file->Fail()) throw MisuseError("pcap: cannot write " + path + " (" + std::strerror(errno) + ")");
    file->Init(ns3::PcapHelper::DLT_EN10MB, most_bytes);
    device.sending().ConnectWithoutContext(ns3::MakeBoundCallback(&write_frame, file));
    device.received().ConnectWithoutContext(ns3::MakeBoundCallback(&write_frame, file));
    files_.push_back(file);
    devices_.push_back(&device);
}

Captures::~Captures() {
    for (const auto& file : files_) file->Close();
}

}  // namespace netsim
