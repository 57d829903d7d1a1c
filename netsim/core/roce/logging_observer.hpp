// Pauses and acknowledgements as a record.
#pragma once

#include <utility>
#include <vector>

#include "roce/packet_carrier.hpp"
#include "roce/queue_pair.hpp"

namespace netsim::roce {

// What has happened while it was kept, on a clock that is ahead of an engine's.
struct EventLog {
    bool is_kept = false;
    TimePs (*now_ps)(const void* engine) = nullptr;
    const void* engine = nullptr;
    TimePs offset_ps = 0;  // by which the engine's clock is behind
    std::vector<PauseEvent> pauses;
    std::vector<Acknowledgement> acknowledgements;

    TimePs time_ps() const { return now_ps(engine) + offset_ps; }
};

// Writes the log, where it is kept, and hands every call on to another observer.
template <typename Inner>
class LoggingObserver : public Inner {
  public:
    // The log outlives the observer.
    LoggingObserver(Inner inner, EventLog& log) : Inner(std::move(inner)), log_(&log) {}

    void on_pause(LinkId link, std::uint8_t priority, bool is_pause) {
        if (log_->is_kept) log_->pauses.push_back({log_->time_ps(), link, priority, is_pause});
        Inner::on_pause(link, priority, is_pause);
    }
    void on_acknowledged(const QueuePair& qp) {
        if (log_->is_kept) log_->acknowledgements.push_back({qp.flow, log_->time_ps()});
        Inner::on_acknowledged(qp);
    }

  private:
    EventLog* log_;
};

}  // namespace netsim::roce
