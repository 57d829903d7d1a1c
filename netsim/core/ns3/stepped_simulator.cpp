#include "stepped_simulator.hpp"

#include <algorithm>
#include <string>

namespace netsim {

namespace {

constexpr std::size_t kFewCancelled = 64;  // not worth a pass over the heap

bool is_for_destroy(const ns3::EventId& id) { return id.GetUid() == ns3::EventId::UID::DESTROY; }

}  // namespace

NS_OBJECT_ENSURE_REGISTERED(SteppedSimulator);

ns3::TypeId SteppedSimulator::GetTypeId() {
    static const ns3::TypeId id = ns3::TypeId("netsim::SteppedSimulator")
                                      .SetParent<ns3::SimulatorImpl>()
                                      .SetGroupName("netsim")
                                      .AddConstructor<SteppedSimulator>();
    return id;
}

TimePs SteppedSimulator::run_until(TimePs until_ps) {
    is_stopping_ = false;
    while (!heap_.empty() && heap_.top().at_ps <= until_ps) {
        const TimePs at_ps = heap_.top().at_ps;
        do {
            run_next();
        } while (!heap_.empty() && heap_.top().at_ps == at_ps);
        if (is_stopping_) return now_ps_;
    }
    now_ps_ = std::max(now_ps_, until_ps);
    return now_ps_;
}

void SteppedSimulator::run_next() {
    const PendingEvent next = heap_.pop();
    const ns3::Ptr<ns3::EventImpl> event(next.event, false);
    if (event->IsCancelled()) {
        if (cancelled_ > 0) --cancelled_;
        return;
    }
    now_ps_ = next.at_ps;
    current_serial_ = next.serial;
    context_ = next.context;
    ++event_count_;
    event->Invoke();
}

TimePs SteppedSimulator::next_event_ps() {
    while (!heap_.empty() && heap_.top().event->IsCancelled()) run_next();
    return heap_.empty() ? kNever : heap_.top().at_ps;
}

void SteppedSimulator::note_cancelled() {
    if (++cancelled_ < kFewCancelled || cancelled_ * 2 < heap_.size()) return;
    cancelled_ = 0;
    std::vector<ns3::Ptr<ns3::EventImpl>> dropped;  // released last: a destructor may schedule or cancel
    heap_.erase_if([&dropped](const PendingEvent& pending) {
        if (!pending.event->IsCancelled()) return false;
        dropped.emplace_back(pending.event, false);
        return true;
    });
}

void SteppedSimulator::refuse(TimePs at_ps, ns3::EventImpl* event) const {
    const ns3::Ptr<ns3::EventImpl> dropped(event, false);
    throw MisuseError("ns3: event at " + std::to_string(at_ps) + " ps, expected not before the clock, which is at " +
                      std::to_string(now_ps_) + " ps");
}

TimePs SteppedSimulator::instant_after(const ns3::Time& delay) const {
    TimePs at_ps;
    const bool is_beyond_clock = __builtin_add_overflow(now_ps_, delay.GetTimeStep(), &at_ps);
    if (is_beyond_clock) {
        throw MisuseError("ns3: delay of " + std::to_string(delay.GetTimeStep()) + " ps at " + std::to_string(now_ps_) +
                          " ps, expected an instant within 2^63 ps");
    }
    return at_ps;
}

void SteppedSimulator::Destroy() {
    while (!destroy_events_.empty()) {
        const ns3::EventId first = destroy_events_.front();
        destroy_events_.erase(destroy_events_.begin());
        first.PeekEventImpl()->Invoke();
    }
}

void SteppedSimulator::DoDispose() {
    while (!heap_.empty()) const ns3::Ptr<ns3::EventImpl> dropped(heap_.pop().event, false);
    ns3::SimulatorImpl::DoDispose();
}

bool SteppedSimulator::IsFinished() const { return heap_.empty() || is_stopping_; }

void SteppedSimulator::Run() {
    is_stopping_ = false;
    while (!is_stopping_ && !heap_.empty()) run_next();
}

void SteppedSimulator::Stop() { is_stopping_ = true; }

ns3::EventId SteppedSimulator::Stop(const ns3::Time& delay) {
    return ns3::Simulator::Schedule(delay, [] { ns3::Simulator::Stop(); });
}

ns3::EventId SteppedSimulator::Schedule(const ns3::Time& delay, ns3::EventImpl* event) {
    const ns3::Ptr<ns3::EventImpl> kept(event);  // for the id
    const TimePs at_ps = instant_after(delay);
    const std::uint64_t serial = schedule_at(at_ps, context_, event);
    return {kept, static_cast<std::uint64_t>(at_ps), context_, static_cast<std::uint32_t>(serial)};
}

void SteppedSimulator::ScheduleWithContext(std::uint32_t context, const ns3::Time& delay, ns3::EventImpl* event) {
    schedule_at(instant_after(delay), context, event);
}

ns3::EventId SteppedSimulator::ScheduleNow(ns3::EventImpl* event) { return Schedule(ns3::Time(0), event); }

ns3::EventId SteppedSimulator::ScheduleDestroy(ns3::EventImpl* event) {
    destroy_events_.emplace_back(ns3::Ptr<ns3::EventImpl>(event, false), now_ps_, ns3::Simulator::NO_CONTEXT,
                                 ns3::EventId::UID::DESTROY);
    return destroy_events_.back();
}

void SteppedSimulator::Remove(const ns3::EventId& id) {
    if (is_for_destroy(id)) {
        std::erase(destroy_events_, id);
    } else {
        Cancel(id);
    }
}

void SteppedSimulator::Cancel(const ns3::EventId& id) {
    if (IsExpired(id)) return;
    id.PeekEventImpl()->Cancel();
    if (!is_for_destroy(id)) note_cancelled();
}

bool SteppedSimulator::IsExpired(const ns3::EventId& id) const {
    if (id.PeekEventImpl() == nullptr || id.PeekEventImpl()->IsCancelled()) return true;
    if (is_for_destroy(id)) return std::ranges::find(destroy_events_, id) == destroy_events_.end();
    const auto at_ps = static_cast<TimePs>(id.GetTs());
    if (at_ps != now_ps_) return at_ps < now_ps_;
    return static_cast<std::int32_t>(id.GetUid() - static_cast<std::uint32_t>(current_serial_)) <= 0;
}

ns3::Time SteppedSimulator::Now() const { return ns3::Time(now_ps_); }

ns3::Time SteppedSimulator::GetDelayLeft(const ns3::EventId& id) const {
    return IsExpired(id) ? ns3::Time(0) : ns3::Time(static_cast<TimePs>(id.GetTs()) - now_ps_);
}

ns3::Time SteppedSimulator::GetMaximumSimulationTime() const { return ns3::Time(kNever); }

void SteppedSimulator::SetScheduler(ns3::ObjectFactory) {}

std::uint32_t SteppedSimulator::GetSystemId() const { return 0; }

std::uint32_t SteppedSimulator::GetContext() const { return context_; }

std::uint64_t SteppedSimulator::GetEventCount() const { return event_count_; }

}  // namespace netsim
