// Packet captures of devices, for tshark and Wireshark.
#pragma once

#include <ns3/pcap-file-wrapper.h>

#include <string>
#include <vector>

#include "roce_net_device.hpp"

namespace netsim {

// Files in pcap format with nanoseconds (what is finer is cut off); closed with the captures.
class Captures {
  public:
    ~Captures();

    // From now on writes what the device sends (when serialisation begins) and receives (when it ends) to
    // `<folder>/<node>-<device>.pcap`, at most `most_bytes` of each frame. A file that exists is replaced. Throws
    // MisuseError where it cannot be written or the device has a capture.
    void add(RoceNetDevice& device, const std::string& folder, std::uint32_t most_bytes);

  private:
    std::vector<ns3::Ptr<ns3::PcapFileWrapper>> files_;
    std::vector<const RoceNetDevice*> devices_;
};

}  // namespace netsim
