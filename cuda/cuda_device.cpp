#include "cuda/cuda_device.h"

#include <nvtx3/nvToolsExt.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "ops/ops.h"

namespace lockstep {
namespace {

// "GPU-5f3c…", as nvidia-smi writes it.
std::string uuid_text(const cudaUUID_t& uuid) {
  std::string text = "GPU-";
  for (int i = 0; i < 16; ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += fmt::format("{:02x}", static_cast<unsigned char>(uuid.bytes[i]));
  }
  return text;
}

cudaDeviceProp properties_of(int ordinal) {
  cudaDeviceProp properties{};
  check_cuda(cudaGetDeviceProperties(&properties, ordinal),
             "cudaGetDeviceProperties");
  return properties;
}

// Dense peaks in FLOP/s from the vendor's data sheets.
struct Peak {
  std::string_view part_of_name;
  double bf16, tf32, fp32;
};
constexpr std::array peaks = {
    Peak{"H100 PCIe", 756e12, 378e12, 51e12},
    Peak{"H100", 989e12, 494.5e12, 67e12},
    Peak{"H200", 989e12, 494.5e12, 67e12},
    Peak{"A100", 312e12, 156e12, 19.5e12},
};

class CudaGraph : public CapturedWork {
 public:
  CudaGraph(cudaStream_t stream, const std::function<void()>& issue)
      : stream_(stream) {
    // The capture ends whatever happens, or the stream would be of no use.
    check_cuda(
        cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal),
        "cudaStreamBeginCapture");
    GraphHandle graph;
    try {
      issue();
    } catch (...) {
      cudaStreamEndCapture(stream_, graph.out());
      throw;
    }
    check_cuda(cudaStreamEndCapture(stream_, graph.out()),
               "cudaStreamEndCapture");
    check_cuda(cudaGraphInstantiate(graph_.out(), graph.get(), 0),
               "cudaGraphInstantiate");
  }
  void launch() override {
    check_cuda(cudaGraphLaunch(graph_.get(), stream_), "cudaGraphLaunch");
  }

 private:
  cudaStream_t stream_;
  GraphExecHandle graph_;
};

}  // namespace

CudaDevice::Current::Current(int ordinal) {
  int count = 0;
  check_cuda(cudaGetDeviceCount(&count), "cudaGetDeviceCount");
  require(ordinal >= 0 && ordinal < count,
          "GPU {} was asked for, but this process sees {}", ordinal, count);
  check_cuda(cudaSetDevice(ordinal), "cudaSetDevice");
}

CudaDevice::CudaDevice(int ordinal) : ordinal_(ordinal), current_(ordinal) {
  const cudaDeviceProp properties = properties_of(ordinal);
  name_ = properties.name;
  multiprocessors_ = properties.multiProcessorCount;
  require(properties.major >= 8,
          "{} has compute capability {}.{}; 8.0 or newer is needed", name_,
          properties.major, properties.minor);
}

double CudaDevice::peak_flops(Precision precision) const {
  const auto* peak =
      std::find_if(peaks.begin(), peaks.end(), [this](const Peak& row) {
        return name_.find(row.part_of_name) != std::string::npos;
      });
  if (peak == peaks.end()) return 0;
  switch (precision) {
    case Precision::bf16:
      return peak->bf16;
    case Precision::tf32:
      return peak->tf32;
    case Precision::fp32:
      return peak->fp32;
  }
  return 0;
}

HostBuffer CudaDevice::allocate_host(std::int64_t bytes) {
  void* data = nullptr;
  check_cuda(cudaHostAlloc(&data, std::max<std::int64_t>(bytes, 1),
                           cudaHostAllocDefault),
             "cudaHostAlloc");
  return {data, [](void* memory) { cudaFreeHost(memory); }};
}

void CudaDevice::copy_to_device(const Tensor& to, const void* from) {
  check_cuda(cudaMemcpyAsync(to.data, from, to.bytes(), cudaMemcpyHostToDevice,
                             stream()),
             "cudaMemcpyAsync to the device");
}

void CudaDevice::copy_to_host(void* to, const Tensor& from) {
  check_cuda(cudaMemcpyAsync(to, from.data, from.bytes(),
                             cudaMemcpyDeviceToHost, stream()),
             "cudaMemcpyAsync to the host");
}

Event CudaDevice::prefetch(const Tensor& to, const void* from,
                           const Event& after) {
  transfer_.wait(after);
  check_cuda(cudaMemcpyAsync(to.data, from, to.bytes(), cudaMemcpyHostToDevice,
                             transfer_.stream()),
             "cudaMemcpyAsync to the device");
  return transfer_.record();
}

void CudaDevice::zero(const Tensor& tensor) {
  check_cuda(cudaMemsetAsync(tensor.data, 0, tensor.bytes(), stream()),
             "cudaMemsetAsync");
}

void CudaDevice::copy(const Tensor& to, const Tensor& from) {
  check_cuda(cudaMemcpyAsync(to.data, from.data, from.bytes(),
                             cudaMemcpyDeviceToDevice, stream()),
             "cudaMemcpyAsync on the device");
}

std::unique_ptr<CapturedWork> CudaDevice::capture(
    const std::function<void()>& issue) {
  return std::make_unique<CudaGraph>(stream(), issue);
}

void CudaDevice::push_profiler_range(const char* name) {
  nvtxRangePushA(name);
}

void CudaDevice::pop_profiler_range() {
  nvtxRangePop();
}

void* CudaDevice::allocate_bytes(std::int64_t bytes) {
  void* data = nullptr;
  const cudaError_t code = cudaMalloc(&data, bytes);
  if (code == cudaErrorMemoryAllocation) {
    cudaGetLastError();  // it is told by the null pointer, not by a later call
    return nullptr;
  }
  check_cuda(code, "cudaMalloc");
  // Other streams may use the memory at once, so the zeros must be there.
  check_cuda(cudaMemsetAsync(data, 0, bytes, stream()), "cudaMemsetAsync");
  synchronize();
  return data;
}

void CudaDevice::free_bytes(void* data) noexcept {
  cudaFree(data);
}

bool built_with_cuda() {
  return true;
}

std::vector<CudaDeviceInfo> cuda_devices() {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) {
    cudaGetLastError();  // no driver, or none new enough: no devices
    return {};
  }
  std::vector<CudaDeviceInfo> devices;
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    const cudaDeviceProp properties = properties_of(ordinal);
    devices.push_back(
        {properties.name,
         uuid_text(properties.uuid),
         fmt::format("{:04x}:{:02x}:{:02x}.0", properties.pciDomainID,
                     properties.pciBusID, properties.pciDeviceID),
         {}});
  }
  for (int from = 0; from < count; ++from) {
    for (int to = 0; to < count; ++to) {
      int can = 0;
      if (from == to) continue;
      check_cuda(cudaDeviceCanAccessPeer(&can, from, to),
                 "cudaDeviceCanAccessPeer");
      if (can == 0) devices[from].not_peers.push_back(devices[to].bus_id);
    }
  }
  return devices;
}

std::string cuda_version() {
  int version = 0;
  check_cuda(cudaRuntimeGetVersion(&version), "cudaRuntimeGetVersion");
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

}  // namespace lockstep
