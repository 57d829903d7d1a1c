#include "verbs_contact.hpp"

#include <sstream>

#include "engine.hpp"

namespace netsim::rdma {

namespace {

void write_pairs(std::ostream& text, const std::vector<QueuePairAddress>& pairs) {
    text << ' ' << pairs.size();
    for (const QueuePairAddress& each : pairs) text << ' ' << each.number << ' ' << each.packet_sequence;
}

void read_pairs(std::istream& text, std::vector<QueuePairAddress>& pairs) {
    std::size_t count = 0;
    text >> count;
    for (QueuePairAddress each; pairs.size() < count && text >> each.number >> each.packet_sequence;) {
        pairs.push_back(each);
    }
}

}  // namespace

std::string VerbsContact::as_text() const {
    std::ostringstream text;
    text << port.lid << ' ' << port.mtu << ' ' << port.arena << ' ' << port.arena_bytes << ' ' << port.arena_key;
    for (const std::uint8_t each : port.gid.raw) text << ' ' << int{each};
    write_pairs(text, senders);
    write_pairs(text, receivers);
    return text.str();
}

VerbsContact VerbsContact::from_text(const std::string& content) {
    VerbsContact found;
    std::istringstream text(content);
    int mtu = 0;
    text >> found.port.lid >> mtu >> found.port.arena >> found.port.arena_bytes >> found.port.arena_key;
    for (std::uint8_t& each : found.port.gid.raw) {
        int value = 0;
        text >> value;
        each = static_cast<std::uint8_t>(value);
    }
    read_pairs(text, found.senders);
    read_pairs(text, found.receivers);
    if (!text || mtu < IBV_MTU_256 || mtu > IBV_MTU_4096) {
        throw EngineError("contact: found '" + content + "', expected that of a port and its queue pairs");
    }
    found.port.mtu = static_cast<ibv_mtu>(mtu);
    return found;
}

}  // namespace netsim::rdma
