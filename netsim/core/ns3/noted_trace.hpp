// A trace source of ns-3 that costs nothing while nobody listens.
#pragma once

#include <ns3/traced-callback.h>

#include <string>

namespace netsim {

// Raises a flag, which many sources share, when something is connected to it.
template <typename... Values>
class NotedTrace : public ns3::TracedCallback<Values...> {
  public:
    using Source = ns3::TracedCallback<Values...>;

    // The flag outlives the source, or is taken from it again by `forget_flag`.
    void note_in(bool& flag) { flag_ = &flag; }
    void forget_flag() { flag_ = nullptr; }

    void ConnectWithoutContext(const ns3::CallbackBase& callback) {
        Source::ConnectWithoutContext(callback);
        note();
    }
    void Connect(const ns3::CallbackBase& callback, std::string path) {
        Source::Connect(callback, std::move(path));
        note();
    }

  private:
    void note() {
        if (flag_ != nullptr) *flag_ = true;
    }

    bool* flag_ = nullptr;
};

}  // namespace netsim
