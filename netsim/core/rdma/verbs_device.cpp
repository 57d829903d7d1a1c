#include "verbs_device.hpp"

#include <arpa/inet.h>
#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <optional>
#include <span>
#include <vector>

#include "engine.hpp"

namespace netsim::rdma {

namespace {

class DeviceList {
  public:
    DeviceList() : devices_(ibv_get_device_list(&count_)) {}
    ~DeviceList() {
        if (devices_ != nullptr) ibv_free_device_list(devices_);
    }
    DeviceList(const DeviceList&) = delete;
    DeviceList& operator=(const DeviceList&) = delete;

    std::span<ibv_device*> all() const { return {devices_, static_cast<std::size_t>(count_)}; }
    std::string names() const {
        std::string joined;
        for (ibv_device* device : all()) joined += (joined.empty() ? "" : ", ") + std::string(device->name);
        return joined;
    }

  private:
    int count_ = 0;
    ibv_device** devices_;
};

struct PortName {
    std::string device;
    int port = 0;  // 0: any
};

PortName split(const std::string& name) {
    const std::size_t colon = name.find(':');
    if (colon == std::string::npos) return {name, 0};
    int port = 0;
    const char* const end = name.data() + name.size();
    const auto [rest, error] = std::from_chars(name.data() + colon + 1, end, port);
    if (error != std::errc() || rest != end || port < 1 || port > 255) {
        throw EngineError("device: found '" + name + "', expected DEVICE or DEVICE:PORT");
    }
    return {name.substr(0, colon), port};
}

// RoCE v2: an IPv6 address as it is, one of IPv4 mapped into it (RFC 4291, section 2.5.5.2).
ibv_gid gid_of(const std::string& address) {
    ibv_gid gid{};
    if (inet_pton(AF_INET6, address.c_str(), gid.raw) == 1) return gid;
    gid.raw[10] = gid.raw[11] = 0xff;
    if (inet_pton(AF_INET, address.c_str(), gid.raw + 12) == 1) return gid;
    throw EngineError("address: found " + address + ", expected an IPv4 or IPv6 address");
}

std::optional<ibv_gid_entry> entry_of(ibv_context* context, int port, const ibv_gid& gid) {
    ibv_device_attr limits{};
    if (ibv_query_device(context, &limits) != 0) return std::nullopt;
    std::size_t room = 0;
    for (int each = 1; each <= limits.phys_port_cnt; ++each) {
        ibv_port_attr attributes{};
        if (ibv_query_port(context, static_cast<std::uint8_t>(each), &attributes) == 0) room += attributes.gid_tbl_len;
    }
    std::vector<ibv_gid_entry> table(room);
    const auto count = ibv_query_gid_table(context, table.data(), table.size(), 0);
    if (count < 0) return std::nullopt;
    table.resize(static_cast<std::size_t>(count));
    const auto found = std::ranges::find_if(table, [&](const ibv_gid_entry& entry) {
        return entry.gid_type == IBV_GID_TYPE_ROCE_V2 && std::memcmp(&entry.gid, &gid, sizeof gid) == 0 &&
               (port == 0 || entry.port_num == static_cast<unsigned>(port));
    });
    return found == table.end() ? std::nullopt : std::optional(*found);
}

bool is_fatal(ibv_event_type event) {
    switch (event) {
        case IBV_EVENT_CQ_ERR:
        case IBV_EVENT_QP_FATAL:
        case IBV_EVENT_QP_REQ_ERR:
        case IBV_EVENT_QP_ACCESS_ERR:
        case IBV_EVENT_DEVICE_FATAL:
        case IBV_EVENT_PORT_ERR:
        case IBV_EVENT_SRQ_ERR:
            return true;
        default:
            return false;
    }
}

}  // namespace

VerbsDevice::VerbsDevice(const std::string& name, const std::string& address, std::optional<int> gid_index) {
    const DeviceList devices;
    const PortName wanted = split(name);
    const ibv_gid gid = gid_of(address);
    for (ibv_device* device : devices.all()) {
        if (!wanted.device.empty() && wanted.device != device->name) continue;
        context_.reset(ibv_open_device(device));
        if (!context_) throw EngineError("device " + std::string(device->name) + ": " + std::strerror(errno));
        const auto entry = entry_of(context(), wanted.port, gid);
        if (wanted.device.empty() && !entry) continue;
        use_port(wanted.port > 0 ? wanted.port : entry ? static_cast<int>(entry->port_num) : 1);
        if (!gid_index && !entry && is_ethernet()) {
            throw EngineError("device " + this->name() + ": found no GID of RoCE v2 for " + address +
                              ", expected one (or a gid_index)");
        }
        use_gid(gid_index ? *gid_index : entry ? static_cast<int>(entry->gid_index) : 0);
        return;
    }
    if (devices.all().empty()) {
        throw EngineError("device: found no RDMA device on this host, expected one that `ibv_devices` lists");
    }
    if (!wanted.device.empty()) {
        throw EngineError("device: found " + wanted.device + ", expected one of " + devices.names());
    }
    throw EngineError("address: found " + address + ", expected one with a GID of RoCE v2 on one of " +
                      devices.names() + " (or a device)");
}

std::string VerbsDevice::name() const {
    return std::string(context_->device->name) + ":" + std::to_string(port_number_);
}

void VerbsDevice::use_port(int port_number) {
    port_number_ = static_cast<std::uint8_t>(port_number);
    const int error = ibv_query_device(context(), &limits_);
    if (error != 0) throw EngineError("device " + name() + ": " + std::strerror(error));
    if (port_number > limits_.phys_port_cnt || ibv_query_port(context(), port_number_, &port_) != 0) {
        throw EngineError("device: found " + name() + ", expected a port of 1 to " +
                          std::to_string(limits_.phys_port_cnt));
    }
    if (port_.state != IBV_PORT_ACTIVE) {
        throw EngineError("device " + name() + ": found " + ibv_port_state_str(port_.state) + ", expected " +
                          ibv_port_state_str(IBV_PORT_ACTIVE));
    }
    domain_.reset(ibv_alloc_pd(context()));
    if (!domain_) throw EngineError("device " + name() + ": protection domain: " + std::strerror(errno));
    fcntl(event_descriptor(), F_SETFL, fcntl(event_descriptor(), F_GETFL) | O_NONBLOCK);
}

void VerbsDevice::use_gid(int index) {
    const ibv_gid none{};
    gid_index_ = index;
    if (index >= port_.gid_tbl_len || ibv_query_gid(context(), port_number_, index, &gid_) != 0 ||
        std::memcmp(&gid_, &none, sizeof none) == 0) {
        throw EngineError("gid_index: found " + std::to_string(index) + ", expected one at which " + name() +
                          " has a GID");
    }
}

VerbsMemory VerbsDevice::registered(void* data, std::size_t bytes, bool is_written_by_peers) const {
    if (bytes == 0) return nullptr;
    const int access = is_written_by_peers ? IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE : 0;
    VerbsMemory memory(ibv_reg_mr(domain(), data, bytes, access));
    if (!memory) {
        throw EngineError("registration of " + std::to_string(bytes) + " bytes at " + name() + ": " +
                          std::strerror(errno) + " (`ulimit -l` bounds locked memory)");
    }
    return memory;
}

std::string VerbsDevice::fatal_event() const {
    std::string found;
    ibv_async_event event{};
    while (ibv_get_async_event(context(), &event) == 0) {
        if (is_fatal(event.event_type) && found.empty()) found = ibv_event_type_str(event.event_type);
        ibv_ack_async_event(&event);
    }
    return found.empty() ? found : "device " + name() + ": " + found;
}

}  // namespace netsim::rdma
