// Tells torch that there is one CUDA device, which does nothing: fake tensors on it need a guard to ask, no driver.
//
// Loaded before torch (LD_PRELOAD), it also answers in torch's place when a backward pass asks for the accelerator.
#include <ATen/DeviceAccelerator.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

namespace {

using c10::Device;
using c10::DeviceType;
using c10::Stream;

const Device card(DeviceType::CUDA, 0);

struct OneCard final : c10::impl::NoOpDeviceGuardImpl<DeviceType::CUDA> {
  Device getDevice() const override { return card; }
  Device exchangeDevice(Device) const override { return card; }
  Stream getStream(Device) const noexcept override { return Stream(Stream::DEFAULT, card); }
  Stream exchangeStream(Stream) const noexcept override { return getStream(card); }
};

C10_REGISTER_GUARD_IMPL(CUDA, OneCard);

struct Hooks final : at::CUDAHooksInterface {
  void init() const override {}
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
};

}  // namespace

namespace at::accelerator {
std::optional<DeviceType> getAccelerator(bool) { return DeviceType::CUDA; }
}  // namespace at::accelerator

namespace at::detail {
const CUDAHooksInterface& getCUDAHooks() {
  static const Hooks hooks;
  return hooks;
}
}  // namespace at::detail
