#include "cuda_memory.hpp"

#include <dlfcn.h>

#include <cstdint>
#include <string>

#include "engine.hpp"

namespace netsim::rdma {

namespace {

constexpr const char* kLibrary = "libcuda.so.1";

using Status = int;                  // CUresult
using Address = unsigned long long;  // CUdeviceptr

Address address_of(const void* data) { return static_cast<Address>(reinterpret_cast<std::uintptr_t>(data)); }

}  // namespace

// Of the CUDA driver API; names without versions are those of cuda.h before its macros.
struct CudaDriver {
    CudaDriver() {
        if (library == nullptr) {
            throw EngineError(std::string("gpu: ") + dlerror() + ", expected the library of NVIDIA's driver");
        }
        find(init, "cuInit");
        find(error_string, "cuGetErrorString");
        find(device_get, "cuDeviceGet");
        find(retain_context, "cuDevicePrimaryCtxRetain");
        find(release_context, "cuDevicePrimaryCtxRelease_v2");
        find(set_context, "cuCtxSetCurrent");
        find(allocate, "cuMemAlloc_v2");
        find(free, "cuMemFree_v2");
        find(to_device, "cuMemcpyHtoD_v2");
        find(from_device, "cuMemcpyDtoH_v2");
    }
    ~CudaDriver() {
        if (library != nullptr) dlclose(library);
    }
    CudaDriver(const CudaDriver&) = delete;
    CudaDriver& operator=(const CudaDriver&) = delete;

    void check(Status status, const std::string& what) const {
        if (status == 0) return;
        const char* text = nullptr;
        error_string(status, &text);
        throw EngineError(what + ": " + (text == nullptr ? "error " + std::to_string(status) : text));
    }

    void* const library = dlopen(kLibrary, RTLD_NOW);
    Status (*init)(unsigned) = nullptr;
    Status (*error_string)(Status, const char**) = nullptr;
    Status (*device_get)(int*, int) = nullptr;
    Status (*retain_context)(void**, int) = nullptr;
    Status (*release_context)(int) = nullptr;
    Status (*set_context)(void*) = nullptr;
    Status (*allocate)(Address*, std::size_t) = nullptr;
    Status (*free)(Address) = nullptr;
    Status (*to_device)(Address, const void*, std::size_t) = nullptr;
    Status (*from_device)(void*, Address, std::size_t) = nullptr;

  private:
    template <typename Function>
    void find(Function& function, const char* name) {
        function = reinterpret_cast<Function>(dlsym(library, name));
        if (function == nullptr) throw EngineError(std::string("gpu: ") + kLibrary + " has no " + name);
    }
};

CudaDevice::CudaDevice(int number) : driver_(std::make_unique<CudaDriver>()) {
    const std::string what = "gpu " + std::to_string(number);
    driver_->check(driver_->init(0), what);
    driver_->check(driver_->device_get(&device_, number), what);
    void* context = nullptr;
    driver_->check(driver_->retain_context(&context, device_), what);
    driver_->check(driver_->set_context(context), what);
}

CudaDevice::~CudaDevice() { driver_->release_context(device_); }

void CudaDevice::copy_to(void* on_device, const void* on_host, std::size_t bytes) const {
    driver_->check(driver_->to_device(address_of(on_device), on_host, bytes), "copy to the gpu");
}

void CudaDevice::copy_from(void* on_host, const void* on_device, std::size_t bytes) const {
    driver_->check(driver_->from_device(on_host, address_of(on_device), bytes), "copy from the gpu");
}

CudaMemory::CudaMemory(const CudaDevice& device, std::size_t bytes) : device_(device) {
    Address found = 0;
    const CudaDriver& driver = *device.driver_;
    driver.check(driver.allocate(&found, bytes), std::to_string(bytes) + " bytes on the gpu");
    data_ = reinterpret_cast<char*>(static_cast<std::uintptr_t>(found));
}

CudaMemory::~CudaMemory() { device_.driver_->free(address_of(data_)); }

}  // namespace netsim::rdma
