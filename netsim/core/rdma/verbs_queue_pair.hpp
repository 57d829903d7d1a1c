// Queue pair of engine `verbs`: one reliable connection to a queue pair of another rank, used in one direction.
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>

#include "verbs_contact.hpp"
#include "verbs_device.hpp"

namespace netsim::rdma {

using VerbsCompletions = std::unique_ptr<ibv_cq, VerbsDeleter<ibv_destroy_cq>>;
using VerbsReceives = std::unique_ptr<ibv_srq, VerbsDeleter<ibv_destroy_srq>>;

// Defaults are those of NCCL (src/transport/net_ib.cc of 2.28).
struct VerbsOptions {
    int queue_pairs = 1;           // of each connection
    bool must_split = false;       // a flow over all of them, not flows in turns
    std::optional<int> mtu_bytes;  // none: the smaller of the two ports' active ones
    std::optional<int> gid_index;  // none: see VerbsDevice
    int traffic_class = 0, service_level = 0;
    int timeout = 20;     // for an acknowledgement: 4.096 us * 2^timeout
    int retry_count = 7;  // after a timeout or a sequence error
    int rnr_retry = 7;    // while the receiver is not ready; 7: without end
};

struct QueuePairResources {
    const VerbsDevice& device;
    ibv_cq* completions;
    ibv_srq* receives;
    std::uint32_t most_under_way;
};

class QueuePair {
  public:
    QueuePair(const QueuePairResources& resources, int peer);

    int peer() const { return peer_; }
    QueuePairAddress address() const { return {pair_->qp_num, packet_sequence_}; }
    int mtu_bytes() const { return mtu_bytes_; }  // 0: not connected
    void connect(const PortAddress& port, const QueuePairAddress& to, const VerbsOptions& options);

    // Posts it, behind those for which there has been no room. A request has at most one element, which is copied.
    void post(const ibv_send_wr& request);
    // A request has been completed.
    void on_completed();

  private:
    struct Request {
        ibv_send_wr header;
        ibv_sge element;
    };
    void change(ibv_qp_attr& attributes, int fields);
    void hand_over(Request request);

    const VerbsDevice& device_;
    std::unique_ptr<ibv_qp, VerbsDeleter<ibv_destroy_qp>> pair_;
    int peer_, mtu_bytes_ = 0;
    std::uint32_t packet_sequence_, most_under_way_, under_way_ = 0;
    std::deque<Request> backlog_;
};

}  // namespace netsim::rdma
