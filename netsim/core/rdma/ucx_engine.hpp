// Engine `ucx`: pieces of flows as active messages of UCP, over whatever transports UCX may use.
//
// One worker, used by one thread at a time. Connections are made by listeners and socket addresses, as worker addresses
// fail over Soft-RoCE (UCX 1.13). It sleeps on the worker's event descriptor: on a host with fewer cores than ranks,
// polling makes the mean of a round trip 20 to 50 times as long.
#pragma once

#include <ucp/api/ucp.h>

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <vector>

#include "payload_pattern.hpp"
#include "rank_executor.hpp"
#include "rank_plan.hpp"
#include "receive_arena.hpp"

namespace netsim::rdma {

// A transfer or a connection failed; what() is one clause.
struct EngineError : std::runtime_error {
    using std::runtime_error::runtime_error;
};

struct UcxOptions {
    int rank = 0, ranks = 1;
    std::string address;         // of the listener and of outgoing connections; numeric
    std::string transports;      // UCX_TLS; empty: as the environment says
    std::string rndv_threshold;  // UCX_RNDV_THRESH; empty: as the environment says
    std::string device;          // UCX_NET_DEVICES; empty: as the environment says
    std::uint64_t key = 0;       // of the run: a stranger's messages are refused
    int channels = 1;            // connections per ordered pair of ranks; flow labels choose
    bool spin = false;           // never sleep
    bool must_verify = false;    // payloads are compared with what was sent
};

struct UcxPeer {
    int rank;
    std::string address;
    std::uint16_t port;
};

class UcxEngine final : public Wire {
  public:
    explicit UcxEngine(const UcxOptions& options);
    ~UcxEngine() override;
    UcxEngine(const UcxEngine&) = delete;
    UcxEngine& operator=(const UcxEngine&) = delete;

    std::uint16_t port() const { return port_; }

    // Connects to `out` and waits until those of `in` have connected; what is connected stays so.
    void connect(const std::vector<UcxPeer>& out, const std::vector<int>& in, Nanoseconds timeout_ns);

    // Transports and devices of the connections to a rank, such as "tcp/eth0"; each once.
    std::string lanes(int rank) const;

    // Prepares the memory for a run.
    void load(RankPlan plan);

    // Runs the plan from t0 on and then serves the others, until stop() is called; throws EngineError.
    void run(Nanoseconds t0_ns);

    // From any thread: ends the present run, or the next.
    void stop();
    // Becomes readable when all is done here.
    int done_descriptor() const { return done_fd_; }

    RankTimes times() const;

    void send(const Piece& piece) override;
    void inform(int rank, Event event) override;

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
    void check_payload(const Header& header, const void* data);
    void accept_requests();
    ucp_ep_h open_endpoint(const ucp_ep_params_t& params);
    bool is_connected(const std::vector<UcxPeer>& out, const std::vector<int>& in) const;
    void flush(Nanoseconds deadline);
    void sleep_until(Nanoseconds at);
    void fail(const std::string& message);
    Operation* take_operation(const Operation& content);
    void give_back(Operation* operation);
    void release_memory();
    void close();

    UcxOptions options_;
    ucp_context_h context_ = nullptr;
    ucp_worker_h worker_ = nullptr;
    ucp_listener_h listener_ = nullptr;
    int event_fd_ = -1, wake_fd_ = -1, done_fd_ = -1;
    std::uint16_t port_ = 0;
    std::vector<std::vector<Connection>> connections_;  // [ranks][channels]
    std::vector<int> greeted_;                          // [ranks] connections that it has made to us
    std::vector<ucp_ep_h> accepted_;
    std::unordered_map<ucp_ep_h, int> rank_of_;
    std::vector<ucp_conn_request_h> requests_;

    RankPlan plan_;
    std::unique_ptr<RankExecutor> executor_;
    std::unique_ptr<PayloadPattern> pattern_;
    std::unique_ptr<ReceiveArena> arena_;
    ucp_mem_h pattern_memory_ = nullptr, arena_memory_ = nullptr;
    std::deque<Waiting> waiting_;
    std::deque<Operation> operations_;  // stable addresses
    std::vector<Operation*> spare_;
    std::int64_t under_way_ = 0;
    std::string failure_;
    std::atomic<bool> must_stop_ = false;
    bool is_closing_ = false;
};

}  // namespace netsim::rdma
