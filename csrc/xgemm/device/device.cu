#include <map>
#include <mutex>

#include "xgemm/device/device.h"
#include "xgemm/device/platform.h"

namespace xgemm {

Device cuda_device(int index) {
  static std::mutex mutex;
  static std::map<int, Device> known;
  std::lock_guard<std::mutex> lock(mutex);
  auto found = known.find(index);
  if (found != known.end()) return found->second;
  int major = 0, minor = 0, count = 0;
  simt::check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, index), "device");
  simt::check(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, index), "device");
  simt::check(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, index), "device");
  return known[index] = {.sm = 10 * major + minor, .sm_count = count};
}

const std::string& cuda_device_name(int index) {
  static std::mutex mutex;
  static std::map<int, std::string> known;
  std::lock_guard<std::mutex> lock(mutex);
  auto found = known.find(index);
  if (found == known.end()) {
    cudaDeviceProp its;
    simt::check(cudaGetDeviceProperties(&its, index), "device");
    found = known.emplace(index, its.name).first;
  }
  return found->second;  // a map's values stay where they are
}

void cuda_check_launch(const char* what) { simt::check(cudaGetLastError(), what); }

}  // namespace xgemm
