// The one ns-3 simulator of this process.
#pragma once

#include "stepped_simulator.hpp"

namespace netsim {

// Sets what ns-3 has once per process: the resolution of its clock (picoseconds) and the engine it creates. To be
// called when the module is loaded, before any simulator; calling it again does nothing.
void prepare_process();

enum class Engine { stepped, stock };  // stock: ns3::DefaultSimulatorImpl with its MapScheduler, for comparison

// Owns the simulator while it lives: starts at time 0 with no nodes, channels or events, random streams as at the
// start of a process; everything of it is destroyed at the end. Throws MisuseError while another session lives.
class Session {
  public:
    explicit Session(Engine engine = Engine::stepped);
    ~Session();
    Session(const Session&) = delete;
    Session& operator=(const Session&) = delete;

    // Only with Engine::stepped.
    SteppedSimulator& simulator() const { return *simulator_; }

  private:
    ns3::Ptr<SteppedSimulator> simulator_;
};

}  // namespace netsim
