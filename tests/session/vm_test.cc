// Address spaces that end while something else goes on.
#include "daemon/session/vm.h"

#include "daemon/session/fence_page.h"
#include "tests/session/device_rig.h"

namespace gpuumd {
namespace {

using base::Errc;
using base::GpuVa;

constexpr GpuVa kVa{0x10'0000'0000};

class Vms : public test::DeviceRig {
 protected:
  void SetUp() override {
    DeviceRig::SetUp();
    auto fences = wait<std::unique_ptr<FenceSlots>>(
        [](Device& device, auto done) { FenceSlots::create(device.gpu(), std::move(done)); });
    ASSERT_TRUE(fences);
    fences_ = std::move(*fences);
    auto vm = wait<std::unique_ptr<Vm>>([&](Device& device, auto done) {
      Vm::create({device.gpu(), device.scheduler(), device.buffers()}, device.next_object_id(),
                 true, fences_->page(), std::move(done));
    });
    ASSERT_TRUE(vm) << vm.error().message();
    vm_ = std::move(*vm);
  }
  void TearDown() override {
    on([&](Device&) {
      vm_.reset();
      fences_.reset();
    });
    DeviceRig::TearDown();
  }
  BufferRef import() {
    return on([](Device& device) {
      return device.buffers().create_import(device.next_object_id(), {1, base::Npa(1 << 20)},
                                            base::kMiB, 0);
    });
  }
  base::Result<void> map(const BufferRef& buffer, bool on_fault = false) {
    return wait<void>([&](Device&, auto done) {
      BindStep step;
      step.map = true;
      step.va = kVa;
      step.bytes = buffer->bytes();
      step.buffer = buffer;
      step.rights = {.read = true};
      step.on_fault = on_fault;
      step.window = base::kMiB;
      std::vector<BindStep> steps;
      steps.push_back(std::move(step));
      vm_->bind(std::move(steps), std::move(done));
    });
  }
  void end() {
    on([&](Device&) { vm_->end([this] { ended_ = true; }); });
  }

  std::unique_ptr<FenceSlots> fences_;
  std::unique_ptr<Vm> vm_;
  bool ended_ = false;  // of the reactor
};

// A revoke that finds a VM on its way out is answered when nothing is reached any more: otherwise
// the exporter would wait for a RELEASE that never comes.
TEST_F(Vms, AnImportIsDetachedFromAVmThatIsEnding) {
  auto buffer = import();
  ASSERT_TRUE(map(buffer));
  std::optional<base::Result<void>> before, after;
  on([&](Device&) {
    // The first is done at once, and its flush is under way; so the second waits in line.
    vm_->unmap_buffer(*buffer, Errc::kRevoked, [](base::Result<void>) {});
    vm_->unmap_buffer(*buffer, Errc::kRevoked, [&](base::Result<void> r) { before = r; });
    vm_->end([&] { ended_ = true; });
    EXPECT_FALSE(before) << "it is mapped still";
    vm_->unmap_buffer(*buffer, Errc::kRevoked, [&](base::Result<void> r) {
      EXPECT_FALSE(ended_);
      EXPECT_EQ(vm_->mappings(), 0u);
      after = r;
    });
  });
  ASSERT_TRUE(eventually([&](Device&) { return ended_; }));
  on([&](Device&) {
    ASSERT_TRUE(before && after);
    EXPECT_TRUE(*before);
    EXPECT_TRUE(*after);
    buffer.reset();
  });
}

// The fault pipeline may come back to a window after the memory behind it was revoked, and before
// the VM's turn to unmap it has come.
TEST_F(Vms, AWindowOfMemoryThatHasGoneIsNotMapped) {
  auto buffer = import();
  ASSERT_TRUE(map(buffer, true));
  on([&](Device& device) {
    device.buffers().mark_gone(*buffer, Errc::kRevoked);
    const auto found = vm_->find(kVa);
    ASSERT_TRUE(found);
    std::optional<base::Result<void>> answer;
    vm_->map_window(found->piece.mapping, kVa, kVa + base::kPageSize,
                    [&](base::Result<void> result) { answer = std::move(result); });
    ASSERT_TRUE(answer);
    EXPECT_EQ(answer->error().code, Errc::kRevoked);
  });
  end();
  ASSERT_TRUE(eventually([&](Device&) { return ended_; }));
  on([&](Device&) { buffer.reset(); });
}

}  // namespace
}  // namespace gpuumd
