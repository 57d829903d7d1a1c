// The engine of a packet model whose events are integers: each is carried by an ordinary event of ns-3.
#pragma once

#include <ns3/event-impl.h>

#include <cstdint>
#include <vector>

#include "../roce/fabric.hpp"
#include "stepped_simulator.hpp"

namespace netsim {

// Has the same semantics as the engine of backend `packet`. Event objects are reused: as many exist as were ever
// pending at once. The simulator outlives it.
class Ns3Engine {
  public:
    explicit Ns3Engine(SteppedSimulator& simulator) : simulator_(simulator) {}
    Ns3Engine(const Ns3Engine&) = delete;
    Ns3Engine& operator=(const Ns3Engine&) = delete;

    TimePs now_ps() const { return simulator_.now_ps(); }
    // Earliest event of the whole simulator, the model's or not; kNever where there is none.
    TimePs next_ps() { return simulator_.next_event_ps(); }

    // Events of one instant run in the order of scheduling. Throws MisuseError for an instant in the past.
    void schedule(TimePs at_ps, roce::EventCode code) {
        if (free_.empty()) add();
        Event& event = *free_.back();
        free_.pop_back();
        event.code = code;
        event.Ref();
        simulator_.schedule_at(at_ps, simulator_.GetContext(), &event);
    }

    // Runs everything up to `until_ps`, but no further than the first instant in which an event of the fabric left it
    // with news. Returns the instant reached.
    template <typename Fabric>
    TimePs run(TimePs until_ps, Fabric& fabric) {
        fabric_ = &fabric;
        handle_ = [](Ns3Engine& engine, roce::EventCode code) {
            auto& of = *static_cast<Fabric*>(engine.fabric_);
            of.handle(code);
            if (of.has_news()) engine.simulator_.request_stop();
        };
        return simulator_.run_until(until_ps);
    }

  private:
    struct Event final : ns3::EventImpl {
        explicit Event(Ns3Engine& engine) : engine(engine) {}
        // Free before it is handled, so that what follows from it can use it again.
        void Notify() override {
            engine.free_.push_back(this);
            engine.handle_(engine, code);
        }

        Ns3Engine& engine;
        roce::EventCode code = 0;
    };

    void add() {
        events_.emplace_back(new Event(*this), false);
        free_.reserve(events_.capacity());
        free_.push_back(ns3::PeekPointer(events_.back()));
    }

    SteppedSimulator& simulator_;
    void* fabric_ = nullptr;
    void (*handle_)(Ns3Engine&, roce::EventCode) = nullptr;
    std::vector<ns3::Ptr<Event>> events_;
    std::vector<Event*> free_;
};
static_assert(roce::EventEngine<Ns3Engine>);

}  // namespace netsim
