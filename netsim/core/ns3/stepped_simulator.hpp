// The event engine that stock ns-3 runs on here: it can be advanced step by step.
#pragma once

#include <ns3/simulator-impl.h>
#include <ns3/simulator.h>

#include <cstdint>
#include <vector>

#include "../event_heap.hpp"

namespace netsim {

struct PendingEvent {
    TimePs at_ps;
    std::uint64_t serial;
    ns3::EventImpl* event;  // one reference, which goes to whoever pops it
    std::uint32_t context;

    EventKey key() const { return event_key(at_ps, serial); }
};

// A replacement of ns3::DefaultSimulatorImpl with the same order of events: by time, then by order of scheduling.
//
// It differs in this: `run_until`; cancelled events neither count nor move the clock, and are dropped in bulk once
// they are the majority; a removed event is one that is cancelled; any thread may use it, one at a time; an event in
// the past, or beyond the last picosecond of the clock, throws MisuseError where stock ns-3 terminates the process.
// An exception of an event reaches the caller of `run_until`, who may go on. The scheduler that ns-3 offers is not
// used. EventIds carry the lower 32 bits of the serial number; "expired" is right while fewer than 2^31 events are
// scheduled between scheduling an event and asking.
class SteppedSimulator : public ns3::SimulatorImpl {
  public:
    static ns3::TypeId GetTypeId();

    // Runs every event with time <= until_ps, then sets the clock there; but where `request_stop` was called, returns
    // when all events of that instant have run, with the clock at that instant. Returns the clock.
    TimePs run_until(TimePs until_ps);
    // Of the next event that is not cancelled; kNever without one.
    TimePs next_event_ps();
    TimePs now_ps() const { return now_ps_; }
    void request_stop() { is_stopping_ = true; }
    // Takes over one reference to the event; returns its serial number.
    std::uint64_t schedule_at(TimePs at_ps, std::uint32_t context, ns3::EventImpl* event) {
        if (at_ps < now_ps_) [[unlikely]]
            refuse(at_ps, event);
        if (static_cast<std::uint32_t>(next_serial_) < ns3::EventId::UID::VALID) [[unlikely]] {
            next_serial_ += ns3::EventId::UID::VALID;  // what EventIds show of it may not be a reserved number
        }
        heap_.push({at_ps, next_serial_, event, context});
        return next_serial_++;
    }

    void Destroy() override;
    bool IsFinished() const override;
    void Stop() override;
    ns3::EventId Stop(const ns3::Time& delay) override;
    ns3::EventId Schedule(const ns3::Time& delay, ns3::EventImpl* event) override;
    void ScheduleWithContext(std::uint32_t context, const ns3::Time& delay, ns3::EventImpl* event) override;
    ns3::EventId ScheduleNow(ns3::EventImpl* event) override;
    ns3::EventId ScheduleDestroy(ns3::EventImpl* event) override;
    void Remove(const ns3::EventId& id) override;
    void Cancel(const ns3::EventId& id) override;
    bool IsExpired(const ns3::EventId& id) const override;
    void Run() override;
    ns3::Time Now() const override;
    ns3::Time GetDelayLeft(const ns3::EventId& id) const override;
    ns3::Time GetMaximumSimulationTime() const override;
    void SetScheduler(ns3::ObjectFactory scheduler) override;
    std::uint32_t GetSystemId() const override;
    std::uint32_t GetContext() const override;
    std::uint64_t GetEventCount() const override;

  protected:
    void DoDispose() override;

  private:
    [[noreturn]] void refuse(TimePs at_ps, ns3::EventImpl* event) const;
    TimePs instant_after(const ns3::Time& delay) const;
    void run_next();  // or drop it, where it has been cancelled
    void note_cancelled();

    EventHeap<PendingEvent> heap_;
    std::vector<ns3::EventId> destroy_events_;
    TimePs now_ps_ = 0;
    std::uint64_t next_serial_ = ns3::EventId::UID::VALID;
    std::uint64_t current_serial_ = 0;
    std::uint64_t event_count_ = 0;
    std::size_t cancelled_ = 0;  // at most, of those in the heap
    std::uint32_t context_ = ns3::Simulator::NO_CONTEXT;
    bool is_stopping_ = false;
};

}  // namespace netsim
