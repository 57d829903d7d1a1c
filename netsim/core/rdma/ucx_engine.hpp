// Engine `ucx`: pieces of flows as active messages of UCP, over whatever transports UCX may use.
//
// One worker. Connections are made by listeners and socket addresses, as worker addresses fail over Soft-RoCE
// (UCX 1.13). It sleeps on the worker's event descriptor: on a host with fewer cores than ranks, polling makes the mean
// of a round trip 20 to 50 times as long.
#pragma once

#include <ucp/api/ucp.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "cuda_memory.hpp"
#include "engine.hpp"
#include "rank_plan.hpp"
#include "receive_arena.hpp"

namespace netsim::rdma {

struct UcxOptions {
    std::string transports;      // UCX_TLS; empty: as the environment says
    std::string rndv_threshold;  // UCX_RNDV_THRESH; empty: as the environment says
    std::uint64_t key = 0;       // of the run: a stranger's messages are refused
    int gpu = -1;                // CUDA device that payloads leave from and arrive in; -1: memory of the host
};

// `device` is UCX_NET_DEVICES; empty: as the environment says.
class UcxEngine final : public Engine {
  public:
    UcxEngine(const EngineOptions& options, const UcxOptions& ucx);
    ~UcxEngine() override;

    Contacts offer(const std::vector<int>& out, const std::vector<int>& in) override;
    void connect(const Contacts& offered, Nanoseconds timeout_ns) override;
    std::string lanes(int rank) const override;
    std::string device() const override { return {}; }

    void send(const Piece& piece) override;
    void inform(int rank, Event event) override;

  protected:
    unsigned progress() override;
    bool arm() override;
    void register_memory() override;
    void release_memory() override;

  private:
    enum class Kind : std::uint32_t { kHello, kWelcome, kPiece, kEvent };
    struct Header {
        Kind kind;
        std::uint32_t number;  // rank, flow or event
        std::uint64_t key;
        std::int64_t offset, bytes;
    };
    struct Connection {
        ucp_ep_h endpoint = nullptr;
        bool is_welcome = false;
    };
    struct Operation {  // a message under way, in either direction
        UcxEngine* engine = nullptr;
        Header header{};
        std::uint32_t index = 0;  // send or receive
        char* memory = nullptr;
    };
    struct Waiting {  // an announced message for which the arena has no room
        void* descriptor;
        Operation operation;
    };

    static ucs_status_t on_message(void* self, const void* header, std::size_t header_bytes, void* data,
                                   std::size_t bytes, const ucp_am_recv_param_t* param);
    static void on_sent(void* request, ucs_status_t status, void* operation);
    static void on_received(void* request, ucs_status_t status, std::size_t bytes, void* operation);
    static void on_request(ucp_conn_request_h request, void* self);
    static void on_error(void* self, ucp_ep_h endpoint, ucs_status_t status);

    ucs_status_t take_piece(const Header& header, void* data, bool is_announced);
    void start_receive(void* descriptor, const Operation& operation);
    void finish_receive(Operation* operation, ucs_status_t status);
    void finish_send(Operation* operation, ucs_status_t status);
    void post(ucp_ep_h endpoint, const Operation& operation, void* data);
    ucs_memory_type_t payload_memory() const { return gpu_ ? UCS_MEMORY_TYPE_CUDA : UCS_MEMORY_TYPE_HOST; }
    void compare(const Header& header, const void* data);
    void accept_requests();
    ucp_ep_h open_endpoint(const ucp_ep_params_t& params);
    bool is_connected() const;
    void flush(Nanoseconds deadline);
    Operation* take_operation(const Operation& content);
    void give_back(Operation* operation);
    void close();

    const UcxOptions ucx_;
    ucp_context_h context_ = nullptr;
    ucp_worker_h worker_ = nullptr;
    ucp_listener_h listener_ = nullptr;
    std::uint16_t port_ = 0;
    std::vector<int> out_, in_;                         // ranks of the last offer
    std::vector<std::vector<Connection>> connections_;  // [ranks][channels]
    std::vector<int> greeted_;                          // [ranks] connections that it has made to us
    std::vector<ucp_ep_h> accepted_;
    std::unordered_map<ucp_ep_h, int> rank_of_;
    std::vector<ucp_conn_request_h> requests_;

    // Payloads leave from departures_ and arrive in parts of arrivals_; those of a GPU own their memory.
    std::unique_ptr<CudaDevice> gpu_;
    std::unique_ptr<CudaMemory> gpu_departures_, gpu_arrivals_;
    std::vector<char> host_arrivals_, compared_;
    char *departures_ = nullptr, *arrivals_ = nullptr;
    std::unique_ptr<ReceiveArena> arena_;
    ucp_mem_h pattern_memory_ = nullptr, arena_memory_ = nullptr;
    std::deque<Waiting> waiting_;
    std::deque<Operation> operations_;  // stable addresses
    std::vector<Operation*> spare_;
    bool is_closing_ = false;
};

}  // namespace netsim::rdma
