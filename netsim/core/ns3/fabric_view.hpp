// What the objects of ns-3 show of the model, which keeps all state itself.
#pragma once

#include "../roce/parameters.hpp"
#include "../roce/port.hpp"
#include "../roce/queue_pair.hpp"

namespace netsim {

// Links are directed, as in the model.
class FabricView {
  public:
    virtual ~FabricView() = default;
    virtual const roce::Parameters& parameters() const = 0;
    virtual const roce::Port& port(LinkId link) const = 0;
    virtual roce::LinkCounters counters(LinkId link) const = 0;  // running pauses included
    virtual std::int64_t queued_bytes(LinkId link) const = 0;
    virtual const roce::QueuePair& queue_pair(roce::QueuePairIndex index) const = 0;
};

}  // namespace netsim
