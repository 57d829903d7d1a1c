// Device of engine `verbs`: an opened port of an RDMA NIC with the GID that packets carry.
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

namespace netsim::rdma {

template <auto destroy>
struct VerbsDeleter {
    template <typename T>
    void operator()(T* object) const {
        destroy(object);
    }
};
using VerbsContext = std::unique_ptr<ibv_context, VerbsDeleter<ibv_close_device>>;
using VerbsDomain = std::unique_ptr<ibv_pd, VerbsDeleter<ibv_dealloc_pd>>;
using VerbsMemory = std::unique_ptr<ibv_mr, VerbsDeleter<ibv_dereg_mr>>;

class VerbsDevice {
  public:
    // Throws EngineError. `name`: "DEVICE" or "DEVICE:PORT"; empty: the device that has the GID of the address.
    // Without `gid_index`, RoCE takes the address's GID of version 2, and InfiniBand the first of the port.
    VerbsDevice(const std::string& name, const std::string& address, std::optional<int> gid_index);

    ibv_context* context() const { return context_.get(); }
    ibv_pd* domain() const { return domain_.get(); }
    const ibv_device_attr& limits() const { return limits_; }
    const ibv_port_attr& port() const { return port_; }
    std::uint8_t port_number() const { return port_number_; }
    bool is_ethernet() const { return port_.link_layer == IBV_LINK_LAYER_ETHERNET; }
    const ibv_gid& gid() const { return gid_; }
    int gid_index() const { return gid_index_; }
    std::string name() const;  // "DEVICE:PORT"

    // Registers memory, for peers to write to where they may. Throws EngineError.
    VerbsMemory registered(void* data, std::size_t bytes, bool is_written_by_peers) const;

    // Readable when the device has something to report.
    int event_descriptor() const { return context_->async_fd; }
    // What it reports that ends transfers; empty: nothing. Does not wait.
    std::string fatal_event() const;

  private:
    void use_port(int port_number);
    void use_gid(int index);

    VerbsContext context_;
    VerbsDomain domain_;
    ibv_device_attr limits_{};
    ibv_port_attr port_{};
    std::uint8_t port_number_ = 1;
    ibv_gid gid_{};
    int gid_index_ = 0;
};

}  // namespace netsim::rdma
