#include "session.hpp"

#include <ns3/global-value.h>
#include <ns3/rng-seed-manager.h>
#include <ns3/string.h>

#include <atomic>
#include <stdexcept>

namespace netsim {

namespace {

// ns-3 has one simulator per process, so this is a fact about the process, not about an object.
std::atomic_flag& is_live() {
    static std::atomic_flag flag;
    return flag;
}

void choose(Engine engine) {
    const char* type = engine == Engine::stepped ? "netsim::SteppedSimulator" : "ns3::DefaultSimulatorImpl";
    ns3::GlobalValue::Bind("SimulatorImplementationType", ns3::StringValue(type));
}

}  // namespace

void prepare_process() {
    if (ns3::Time::GetResolution() != ns3::Time::PS) ns3::Time::SetResolution(ns3::Time::PS);
    // Inline functions of ns-3 read the resolution through a static, of which a module compiled with hidden visibility
    // has a copy of its own that still says nanoseconds.
    if (ns3::PicoSeconds(1).GetTimeStep() != 1) {
        throw std::logic_error("ns3: found two clock resolutions in the process, expected symbols not to be hidden");
    }
    choose(Engine::stepped);
}

Session::Session(Engine engine) {
    if (is_live().test_and_set()) {
        throw MisuseError(
            "ns3: a network is open in this process, expected at most one; close it first, or use one process each");
    }
    ns3::Simulator::Destroy();  // whatever ns-3 created by itself since the last session
    choose(engine);
    ns3::RngSeedManager::ResetNextStreamIndex();
    simulator_ = ns3::DynamicCast<SteppedSimulator>(ns3::Simulator::GetImplementation());
}

Session::~Session() {
    ns3::Simulator::Destroy();
    choose(Engine::stepped);
    is_live().clear();
}

}  // namespace netsim
