// Memory of a CUDA device, through the driver's library as it is loaded at run time: nothing here is built against
// CUDA.
#pragma once

#include <cstddef>
#include <memory>

namespace netsim::rdma {

struct CudaDriver;  // the functions that are used

// A device whose primary context is current in the thread that makes it; throws EngineError.
class CudaDevice {
  public:
    explicit CudaDevice(int number);
    ~CudaDevice();
    CudaDevice(const CudaDevice&) = delete;
    CudaDevice& operator=(const CudaDevice&) = delete;

    // Both return when the bytes are there.
    void copy_to(void* on_device, const void* on_host, std::size_t bytes) const;
    void copy_from(void* on_host, const void* on_device, std::size_t bytes) const;

  private:
    friend class CudaMemory;
    std::unique_ptr<CudaDriver> driver_;
    int device_ = 0;
};

// Bytes on a device, which outlives them; throws EngineError.
class CudaMemory {
  public:
    CudaMemory(const CudaDevice& device, std::size_t bytes);
    ~CudaMemory();
    CudaMemory(const CudaMemory&) = delete;
    CudaMemory& operator=(const CudaMemory&) = delete;

    char* data() const { return data_; }

  private:
    const CudaDevice& device_;
    char* data_ = nullptr;
};

}  // namespace netsim::rdma
