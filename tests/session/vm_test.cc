// Address spaces: what must not come in between, and how they end while something else goes on.
#include "daemon/session/vm.h"

#include <string>
#include <vector>

#include "daemon/session/faults.h"
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
  base::Result<BufferRef> vram(std::uint64_t bytes) {
    return wait<BufferRef>([=](Device& device, auto done) {
      device.buffers().create(device.next_object_id(), {request::Memory::kVram, bytes, 0}, 0,
                              std::move(done));
    });
  }
  // Steps hold references to buffers: on the reactor.
  static BindStep map_step(const BufferRef& buffer, GpuVa va = kVa, bool on_fault = false) {
    BindStep step = unmap_step(va, buffer->bytes());
    step.map = true;
    step.buffer = buffer;
    step.rights = {.read = true};
    step.on_fault = on_fault;
    step.window = base::kMiB;
    return step;
  }
  static BindStep unmap_step(GpuVa va, std::uint64_t bytes) {
    BindStep step;
    step.va = va;
    step.bytes = bytes;
    return step;
  }
  base::Result<void> bind(std::function<std::vector<BindStep>()> steps) {
    return wait<void>([&](Device&, auto done) { vm_->bind(steps(), std::move(done)); });
  }
  base::Result<void> map(const BufferRef& buffer, bool on_fault = false) {
    return bind([&] { return std::vector{map_step(buffer, kVa, on_fault)}; });
  }
  void end() {
    on([&](Device&) { vm_->end([this] { ended_ = true; }); });
  }
  void expect_end() {
    end();
    ASSERT_TRUE(eventually([&](Device&) { return ended_; }));
  }

  std::unique_ptr<FenceSlots> fences_;
  std::unique_ptr<Vm> vm_;
  bool ended_ = false;  // of the reactor
};

// Hubs may use the old entries until they have acknowledged, and accesses that did until a heavy
// flush has ended: before that nobody else gets the memory.
TEST_F(Vms, INV_3_A21_UnboundMemoryIsKeptUntilAHeavyFlush) {
  auto made = vram(2 * base::kMiB);
  ASSERT_TRUE(made) << made.error().message();
  auto& buffer = *made;
  ASSERT_TRUE(map(buffer));
  bool done = false;
  on([&](Device& device) {
    const auto heavy = [&device] { return device.gpu().flushes().counters().heavy; };
    const auto id = buffer->id();
    vm_->bind({unmap_step(kVa, buffer->bytes())},
              [&, heavy, id, before = heavy()](base::Result<void> result) {
                EXPECT_TRUE(result);
                EXPECT_EQ(heavy(), before + 1);
                EXPECT_EQ(device.buffers().find(id), nullptr) << "nobody holds it any more";
                done = true;
              });
    buffer.reset();
    EXPECT_FALSE(done);
    EXPECT_EQ(vm_->mappings(), 0u);
    EXPECT_NE(device.buffers().find(id), nullptr) << "its flush is under way";
  });
  EXPECT_TRUE(eventually([&](Device&) { return done; }));
  expect_end();
}

TEST_F(Vms, INV_7_AnUnbindUnderWayDoesNotWipeTheBindBehindIt) {
  auto first = import(), second = import();
  ASSERT_TRUE(map(first));
  std::vector<std::string> done;
  on([&](Device&) {
    const auto note = [&done](const char* what) {
      return [&done, what](base::Result<void> result) {
        done.push_back(result ? what : result.error().message());
      };
    };
    vm_->bind({unmap_step(kVa, first->bytes())}, note("unbind"));
    vm_->bind({map_step(second)}, note("bind"));
  });
  EXPECT_TRUE(eventually([&](Device&) { return done.size() == 2; }));
  on([&](Device&) {
    EXPECT_EQ(done, (std::vector<std::string>{"unbind", "bind"}));
    const auto found = vm_->find(kVa);
    ASSERT_TRUE(found);
    EXPECT_EQ(found->piece.mapping->buffer.get(), second.get());
    EXPECT_TRUE(vm_->mapped(kVa, false));
    first.reset();
    second.reset();
  });
  expect_end();
}

TEST_F(Vms, VMB_5_AListWithABadOperationChangesNothing) {
  auto buffer = import();
  ASSERT_TRUE(map(buffer));
  const auto size = buffer->bytes();
  const auto expect_refused = [&](Errc code, std::function<BindStep()> bad) {
    const auto bound = bind([&] {
      return std::vector{unmap_step(kVa, size), map_step(buffer, kVa + 4 * size), bad()};
    });
    ASSERT_FALSE(bound);
    EXPECT_EQ(bound.error().code, code) << bound.error().message();
    on([&](Device&) {
      EXPECT_EQ(vm_->mappings(), 1u);
      EXPECT_TRUE(vm_->mapped(kVa, false));
      EXPECT_FALSE(vm_->mapped(kVa + 4 * size, false));
    });
  };
  expect_refused(Errc::kNotFound, [&] { return unmap_step(kVa + 8 * size, size); });
  expect_refused(Errc::kNotFound, [&] { return unmap_step(kVa, size); });
  expect_refused(Errc::kExists, [&] { return map_step(buffer, kVa + 4 * size); });
  expect_refused(Errc::kOutOfRange, [&] { return map_step(buffer, kEndVa); });
  expect_refused(Errc::kOutOfRange, [&] {
    auto step = map_step(buffer, kVa + 8 * size);
    step.offset = base::kPageSize;
    return step;
  });
  on([&](Device&) { buffer.reset(); });
  expect_end();
}

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

// ---- its faults ----

// A pipeline of the test's own, to which the VM is the owner of its PASID.
class VmFaults : public Vms {
 protected:
  void SetUp() override {
    Vms::SetUp();
    on([&](Device& device) {
      pipeline_.emplace(
          device.gpu(), device.buffers(),
          [this](base::Pasid pasid) { return pasid == vm_->pasid() ? vm_.get() : nullptr; },
          [this](Vm&, const FaultPipeline::Fatal& what) { fatal_.push_back(what.reason); });
    });
  }
  void TearDown() override {
    on([&](Device&) { pipeline_.reset(); });
    Vms::TearDown();
  }
  PageFault fault() const {
    PageFault fault;
    fault.vmid = vm_->vmid();
    fault.pasid = vm_->pasid();
    fault.va = kVa;
    fault.write = true;
    return fault;
  }

  std::optional<FaultPipeline> pipeline_;
  std::vector<Errc> fatal_;
};

// The PASID is of this VM, and the VMID is not: somebody had both at another time.
TEST_F(VmFaults, FH_1_AFaultThatNamesAnotherVmidIsStray) {
  on([&](Device&) {
    auto other = fault();
    other.vmid = base::Vmid(other.vmid.value() == 3 ? 4 : 3);
    pipeline_->access_failed(other);
    EXPECT_EQ(pipeline_->counters().stray, 1u);
    EXPECT_FALSE(vm_->dead());
    pipeline_->access_failed(fault());
    EXPECT_EQ(fatal_, std::vector{Errc::kFault});
  });
  expect_end();
}

TEST_F(VmFaults, FH_3_AnAccessThatItsMappingForbidsIsFatal) {
  auto buffer = import();
  ASSERT_TRUE(map(buffer, true));  // to be read
  on([&](Device& device) {
    auto& faults = device.gpu().interrupts().retry_faults();
    auto write = fault();
    write.retry = true;
    write.cam_index = 5;
    ASSERT_TRUE(faults.arrive(write));
    pipeline_->poll();
    EXPECT_EQ(fatal_, std::vector{Errc::kPermission});
    EXPECT_EQ(faults.in_service(), 0u) << "acknowledged (errata C3)";
    buffer.reset();
  });
  expect_end();
}

}  // namespace
}  // namespace gpuumd
