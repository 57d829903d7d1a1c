#include "verbs_queue_pair.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <random>

#include "engine.hpp"

namespace netsim::rdma {

namespace {

// Constants of NCCL (src/transport/net_ib.cc of 2.28): the longest way, and RNR timer 12, 0.64 ms.
constexpr std::uint8_t kHopLimit = 255;
constexpr std::uint8_t kRnrTimer = 12;

std::uint32_t new_packet_sequence() {
    std::random_device random;
    return random() & 0xffffff;  // [IB 9.2] 24 bits
}

}  // namespace

QueuePair::QueuePair(const QueuePairResources& resources, int peer)
    : device_(resources.device),
      peer_(peer),
      packet_sequence_(new_packet_sequence()),
      most_under_way_(resources.most_under_way) {
    ibv_qp_init_attr wanted{};
    wanted.qp_type = IBV_QPT_RC;
    wanted.send_cq = wanted.recv_cq = resources.completions;
    wanted.srq = resources.receives;
    wanted.cap.max_send_wr = most_under_way_;
    wanted.cap.max_send_sge = 1;
    wanted.sq_sig_all = 1;
    pair_.reset(ibv_create_qp(device_.domain(), &wanted));
    if (!pair_) throw EngineError("queue pair at " + device_.name() + ": " + std::strerror(errno));

    ibv_qp_attr attributes{};
    attributes.qp_state = IBV_QPS_INIT;
    attributes.port_num = device_.port_number();
    attributes.qp_access_flags = IBV_ACCESS_REMOTE_WRITE;
    change(attributes, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
}

void QueuePair::connect(const PortAddress& port, const QueuePairAddress& to, const VerbsOptions& options) {
    const int most = bytes_of(std::min(port.mtu, device_.port().active_mtu));
    if (options.mtu_bytes > most) {
        throw EngineError("mtu_bytes: found " + std::to_string(*options.mtu_bytes) + ", expected at most " +
                          std::to_string(most) + " between " + device_.name() + " and rank " + std::to_string(peer_));
    }
    ibv_qp_attr attributes{};
    attributes.qp_state = IBV_QPS_RTR;
    mtu_bytes_ = options.mtu_bytes.value_or(most);
    attributes.path_mtu = mtu_of(mtu_bytes_);
    attributes.dest_qp_num = to.number;
    attributes.rq_psn = to.packet_sequence;
    attributes.max_dest_rd_atomic = 1;
    attributes.min_rnr_timer = kRnrTimer;
    attributes.ah_attr.port_num = device_.port_number();
    attributes.ah_attr.sl = static_cast<std::uint8_t>(options.service_level);
    attributes.ah_attr.dlid = port.lid;
    if (device_.is_ethernet()) {
        attributes.ah_attr.is_global = 1;
        attributes.ah_attr.grh.dgid = port.gid;
        attributes.ah_attr.grh.sgid_index = static_cast<std::uint8_t>(device_.gid_index());
        attributes.ah_attr.grh.hop_limit = kHopLimit;
        attributes.ah_attr.grh.traffic_class = static_cast<std::uint8_t>(options.traffic_class);
    }
    change(attributes, IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
                           IBV_QP_MIN_RNR_TIMER);

    attributes = {};
    attributes.qp_state = IBV_QPS_RTS;
    attributes.timeout = static_cast<std::uint8_t>(options.timeout);
    attributes.retry_cnt = static_cast<std::uint8_t>(options.retry_count);
    attributes.rnr_retry = static_cast<std::uint8_t>(options.rnr_retry);
    attributes.sq_psn = packet_sequence_;
    attributes.max_rd_atomic = 1;
    change(attributes, IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
}

void QueuePair::change(ibv_qp_attr& attributes, int fields) {
    const int error = ibv_modify_qp(pair_.get(), &attributes, fields | IBV_QP_STATE);
    if (error != 0) {
        throw EngineError("queue pair to rank " + std::to_string(peer_) + " at " + device_.name() + ": " +
                          std::strerror(error));
    }
}

void QueuePair::post(const ibv_send_wr& request) {
    const Request kept{request, request.num_sge > 0 ? *request.sg_list : ibv_sge{}};
    if (under_way_ == most_under_way_) {
        backlog_.push_back(kept);
    } else {
        hand_over(kept);
    }
}

void QueuePair::on_completed() {
    --under_way_;
    if (backlog_.empty()) return;
    hand_over(backlog_.front());
    backlog_.pop_front();
}

void QueuePair::hand_over(Request request) {
    request.header.sg_list = &request.element;
    ibv_send_wr* refused = nullptr;
    const int error = ibv_post_send(pair_.get(), &request.header, &refused);
    if (error != 0) throw EngineError("queue pair to rank " + std::to_string(peer_) + ": " + std::strerror(error));
    ++under_way_;
}

}  // namespace netsim::rdma
