// Events of a model that are integers, carried as ordinary events of ns-3.
#pragma once

#include <ns3/event-impl.h>

#include <cstdint>
#include <vector>

#include "stepped_simulator.hpp"

namespace netsim {

// What the model packs into an event: kind, generation, index.
using EventCode = std::uint64_t;

// The engine of a model on ns-3. The event objects are reused: as many exist as were ever pending at once. Neither the
// simulator nor the model may go before the last event has run; events that are still pending may outlive the engine,
// but may not run then.
class CodeEvents {
  public:
    // The model's handle(EventCode) is called when the time comes.
    template <typename Model>
    CodeEvents(SteppedSimulator& simulator, Model& model)
        : simulator_(simulator),
          model_(&model),
          handle_([](void* to, EventCode code) { static_cast<Model*>(to)->handle(code); }) {}
    CodeEvents(const CodeEvents&) = delete;
    CodeEvents& operator=(const CodeEvents&) = delete;

    TimePs now_ps() const { return simulator_.now_ps(); }

    // Events of one instant run in the order of scheduling. Throws MisuseError for an instant in the past.
    void schedule(TimePs at_ps, EventCode code) {
        if (free_.empty()) add();
        Event& event = *free_.back();
        free_.pop_back();
        event.code = code;
        event.Ref();
        simulator_.schedule_at(at_ps, simulator_.GetContext(), &event);
    }

  private:
    struct Event final : ns3::EventImpl {
        explicit Event(CodeEvents& engine) : engine(engine) {}
        // Free before it is handled, so that what follows from it can use it again.
        void Notify() override {
            engine.free_.push_back(this);
            engine.handle_(engine.model_, code);
        }

        CodeEvents& engine;
        EventCode code = 0;
    };

    void add() {
        events_.emplace_back(new Event(*this), false);
        free_.reserve(events_.size());
        free_.push_back(ns3::PeekPointer(events_.back()));
    }

    SteppedSimulator& simulator_;
    void* model_;
    void (*handle_)(void*, EventCode);
    std::vector<ns3::Ptr<Event>> events_;
    std::vector<Event*> free_;
};

}  // namespace netsim
