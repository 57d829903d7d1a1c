#include "event_script.hpp"

#include <stdexcept>

namespace netsim {

namespace {

class ScriptRun {
  public:
    ScriptRun(const std::vector<ScriptedEvent>& events, std::vector<ScriptLog>& log)
        : events_(events), log_(log), children_(events.size()), ids_(events.size()) {
        for (std::size_t i = 0; i < events.size(); ++i) {
            if (events[i].parent >= 0) children_[static_cast<std::size_t>(events[i].parent)].push_back(i);
        }
    }

    void start() {
        for (std::size_t i = 0; i < events_.size(); ++i) {
            if (events_[i].parent < 0) schedule(i);
        }
    }

    bool take_stopped() { return std::exchange(has_stopped_, false); }

  private:
    void schedule(std::size_t i) {
        const ns3::Time delay(events_[i].delay_ps);
        const auto run = [this, i] { this->run(i); };
        switch (events_[i].how) {
            case How::schedule:
                ids_[i] = ns3::Simulator::Schedule(delay, run);
                break;
            case How::with_context:
                ns3::Simulator::ScheduleWithContext(static_cast<std::uint32_t>(i), delay, run);
                break;
            case How::now:
                ids_[i] = ns3::Simulator::ScheduleNow(run);
                break;
            case How::at_destroy:
                ids_[i] = ns3::Simulator::ScheduleDestroy(run);
                break;
        }
    }

    void run(std::size_t i) {
        for (const std::size_t child : children_[i]) schedule(child);
        const ns3::EventId& target = ids_[static_cast<std::size_t>(events_[i].target)];
        log_.push_back({ns3::Simulator::Now().GetTimeStep(), static_cast<std::int64_t>(i), ns3::Simulator::GetContext(),
                        ns3::Simulator::IsExpired(target), ns3::Simulator::GetDelayLeft(target).GetTimeStep()});
        switch (events_[i].act) {
            case Act::none:
                break;
            case Act::cancel:
                ns3::Simulator::Cancel(target);
                break;
            case Act::remove:
                ns3::Simulator::Remove(target);
                break;
            case Act::stop:
                has_stopped_ = true;
                ns3::Simulator::Stop();
                break;
            case Act::fail:
                throw std::runtime_error("event " + std::to_string(i) + " of the script failed");
        }
    }

    const std::vector<ScriptedEvent>& events_;
    std::vector<ScriptLog>& log_;
    std::vector<std::vector<std::size_t>> children_;
    std::vector<ns3::EventId> ids_;
    bool has_stopped_ = false;
};

void check(const std::vector<ScriptedEvent>& events) {
    const auto size = static_cast<std::int64_t>(events.size());
    for (std::int64_t i = 0; i < size; ++i) {
        const ScriptedEvent& event = events[static_cast<std::size_t>(i)];
        if (event.parent < -1 || event.parent >= i || event.target < 0 || event.target >= size) {
            throw MisuseError("script event " + std::to_string(i) + ": found parent " + std::to_string(event.parent) +
                              " and target " + std::to_string(event.target) +
                              ", expected -1 or an earlier event, and an event");
        }
    }
}

void run_in_steps(SteppedSimulator& simulator, TimePs step_ps) {
    for (TimePs next_ps = simulator.next_event_ps(); next_ps != kNever; next_ps = simulator.next_event_ps()) {
        simulator.run_until(std::min(next_ps, simulator.now_ps() + step_ps));
    }
}

}  // namespace

std::vector<ScriptLog> run_script(Engine engine, const std::vector<ScriptedEvent>& events, TimePs step_ps) {
    check(events);
    std::vector<ScriptLog> log;
    ScriptRun run(events, log);
    const Session session(engine);
    run.start();
    if (engine == Engine::stepped && step_ps > 0) {
        run_in_steps(session.simulator(), step_ps);
    } else {
        do {
            ns3::Simulator::Run();
        } while (run.take_stopped());
    }
    ns3::Simulator::Destroy();
    return log;
}

}  // namespace netsim
