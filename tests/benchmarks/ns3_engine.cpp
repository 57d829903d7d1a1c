// Cost of an event on the engines that stock ns-3 can run on, and of an empty step.
//
// The hold model: a fixed number of events are pending; each schedules its successor after a random delay. Random
// numbers and the loop are the same for all; "bare" is the same heap without ns-3, the lower bound. The best of several
// rounds counts.
//
//     cmake … -DPD_NS3=ON -DPD_BENCHMARKS=ON && cmake --build … --target ns3_engine && …/ns3_engine
#include "ns3/ns3_engine.hpp"

#include <ns3/object-factory.h>

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <functional>

#include "ns3/session.hpp"

namespace {

using netsim::TimePs;
using netsim::roce::EventCode;

constexpr std::int64_t kEvents = 1'000'000;
constexpr int kRounds = 5;

// Time of the processor, as other programs may run on the machine.
double seconds_since(std::clock_t start) { return static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC; }

// xorshift64 (Marsaglia 2003): delays of 1 ps to 1.05 µs.
class Delays {
  public:
    TimePs next() {
        state_ ^= state_ << 13;
        state_ ^= state_ >> 7;
        state_ ^= state_ << 17;
        return static_cast<TimePs>(state_ & 0xfffff) + 1;
    }

  private:
    std::uint64_t state_ = 88172645463325252;
};

class CodeModel {
  public:
    explicit CodeModel(netsim::Ns3Engine& engine) : engine_(engine) {}
    void start(int pending) {
        for (int i = 0; i < pending; ++i) engine_.schedule(delays_.next(), static_cast<EventCode>(i));
    }
    void handle(EventCode code) {
        if (--left_ > 0) engine_.schedule(engine_.now_ps() + delays_.next(), code);
    }
    bool has_news() const { return false; }

  private:
    netsim::Ns3Engine& engine_;
    Delays delays_;
    std::int64_t left_ = kEvents;
};

class LambdaModel {
  public:
    void start(int pending) {
        for (int i = 0; i < pending; ++i) schedule();
    }

  private:
    void schedule() {
        ns3::Simulator::Schedule(ns3::Time(delays_.next()), [this] {
            if (--left_ > 0) schedule();
        });
    }

    Delays delays_;
    std::int64_t left_ = kEvents;
};

double stock(const char* scheduler, int pending) {
    const netsim::Session session(netsim::Engine::stock);
    ns3::ObjectFactory factory;
    factory.SetTypeId(scheduler);
    ns3::Simulator::SetScheduler(factory);
    LambdaModel model;
    model.start(pending);
    const auto start = std::clock();
    ns3::Simulator::Run();
    return seconds_since(start);
}

double stepped_lambdas(int pending) {
    const netsim::Session session;
    LambdaModel model;
    model.start(pending);
    const auto start = std::clock();
    session.simulator().run_until(netsim::kNever - 1);
    return seconds_since(start);
}

double stepped_codes(int pending) {
    const netsim::Session session;
    netsim::Ns3Engine engine(session.simulator());
    CodeModel model(engine);
    model.start(pending);
    const auto start = std::clock();
    engine.run(netsim::kNever - 1, model);
    return seconds_since(start);
}

double bare(int pending) {
    netsim::EventHeap<netsim::PendingEvent> heap;
    Delays delays;
    std::uint64_t serial = 0;
    for (int i = 0; i < pending; ++i) heap.push({delays.next(), serial++, nullptr, 0});
    const auto start = std::clock();
    for (std::int64_t left = kEvents; !heap.empty();) {
        const TimePs now_ps = heap.pop().at_ps;
        if (--left > 0) heap.push({now_ps + delays.next(), serial++, nullptr, 0});
    }
    return seconds_since(start);
}

double best(const std::function<double()>& measure) {
    double least = measure();
    for (int i = 1; i < kRounds; ++i) least = std::min(least, measure());
    return least;
}

void measure_steps() {
    constexpr int kSteps = 1'000'000;
    const netsim::Session session;
    const double took = best([&session] {
        const auto start = std::clock();
        for (int i = 0; i < kSteps; ++i) session.simulator().run_until(session.simulator().now_ps() + 1000);
        return seconds_since(start);
    });
    std::printf("empty step of the stepped engine: %.1f ns\n", took / kSteps * 1e9);
}

}  // namespace

int main() {
    netsim::prepare_process();
    std::printf("ns per event, best of %d rounds of %lld events\n", kRounds, static_cast<long long>(kEvents));
    std::printf("%8s %8s %8s %12s %8s %8s %8s\n", "pending", "bare", "codes", "lambdas", "PrioQ", "Map", "Heap");
    for (const int pending : {16, 128, 1024, 16384}) {
        const auto ns = [](double seconds) { return seconds / static_cast<double>(kEvents) * 1e9; };
        std::printf("%8d %8.1f %8.1f %12.1f", pending, ns(best([=] { return bare(pending); })),
                    ns(best([=] { return stepped_codes(pending); })),
                    ns(best([=] { return stepped_lambdas(pending); })));
        for (const char* scheduler : {"ns3::PriorityQueueScheduler", "ns3::MapScheduler", "ns3::HeapScheduler"}) {
            std::printf(" %8.1f", ns(best([=] { return stock(scheduler, pending); })));
        }
        std::printf("\n");
    }
    measure_steps();
    return 0;
}
