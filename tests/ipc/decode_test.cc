// Requests and commands: what is accepted, and that every other shape is refused by name.
#include <gtest/gtest.h>

#include "base/bytes.h"
#include "daemon/ipc/command_decode.h"
#include "daemon/ipc/request_decode.h"
#include "daemon/ipc/status.h"
#include "gpuumd/gpuumd.h"

namespace gpuumd {
namespace {

using wire::RequestType;

template <class T>
T with_header(RequestType type, T request = {}) {
  request.header.type = type;
  request.header.size = sizeof(T);
  request.header.id = 1;
  return request;
}

template <class T>
base::Result<Request> decode(const T& request) {
  return decode_request(base::as_bytes(request), ForeignFd());
}

template <class T>
base::Errc error_of(const T& request) {
  const auto result = decode(request);
  return result ? base::Errc{0} : result.error().code;
}

wire::Bind one_bind() {
  wire::Bind bind{};
  bind.vm = 3;
  bind.count = 1;
  bind.operations[0] = {.kind = GPUUMD_BIND_MAP,
                        .flags = GPUUMD_BIND_READ,
                        .va = 0x10000,
                        .bytes = 0x2000,
                        .buffer = 9,
                        .offset = 0x1000,
                        .fault_window = 0,
                        .reserved = {}};
  bind.header = {RequestType::kBind, 48 + 64, 1, 0, 0};
  return bind;
}
base::Result<Request> decode_bind(const wire::Bind& bind) {
  return decode_request(base::as_bytes(bind).first(bind.header.size), ForeignFd());
}

TEST(DecodeRequest, CreateBuffer) {
  auto in = with_header<wire::CreateBuffer>(RequestType::kCreateBuffer);
  in.kind = GPUUMD_BUFFER_HOST;
  in.bytes = 5;
  in.alignment = 0x200000;
  const auto result = decode(in);
  ASSERT_TRUE(result);
  const auto& out = std::get<request::CreateBuffer>(*result);
  EXPECT_EQ(out.kind, request::Memory::kHost);
  EXPECT_EQ(out.bytes, 5u);
  EXPECT_EQ(out.alignment, 0x200000u);
  auto bad = in;
  bad.bytes = 0;
  EXPECT_EQ(error_of(bad), base::Errc::kInvalidArgument);
  bad = in;
  bad.alignment = 3;
  EXPECT_EQ(error_of(bad), base::Errc::kInvalidArgument);
  bad = in;
  bad.kind = GPUUMD_BUFFER_IMPORT;
  EXPECT_EQ(error_of(bad), base::Errc::kInvalidArgument);
}

TEST(DecodeRequest, VMB_12_UnknownFlagsAreRefused) {
  auto vm = with_header<wire::CreateVm>(RequestType::kCreateVm);
  vm.flags = 2;
  EXPECT_EQ(error_of(vm), base::Errc::kInvalidArgument);
  vm.flags = GPUUMD_VM_FAULTS;
  ASSERT_TRUE(decode(vm));
  EXPECT_TRUE(std::get<request::CreateVm>(*decode(vm)).faults);
  auto buffer = with_header<wire::CreateBuffer>(RequestType::kCreateBuffer);
  buffer.flags = 1;
  EXPECT_EQ(error_of(buffer), base::Errc::kInvalidArgument);
  auto queue = with_header<wire::CreateQueue>(RequestType::kCreateQueue);
  queue.flags = 1;
  EXPECT_EQ(error_of(queue), base::Errc::kInvalidArgument);
  auto bind = one_bind();
  bind.operations[0].flags |= 8;
  EXPECT_EQ(decode_bind(bind).error().code, base::Errc::kInvalidArgument);
}

// Flips each byte of each request that is not a field: the reserved ones must all be noticed.
TEST(DecodeRequest, VMB_16_EveryReservedByteCounts) {
  const auto expect_refused = [](auto request, std::size_t offset, std::size_t size) {
    ASSERT_TRUE(decode(request));
    for (std::size_t i = 0; i < size; ++i) {
      auto copy = request;
      reinterpret_cast<unsigned char*>(&copy)[offset + i] = 1;
      EXPECT_EQ(error_of(copy), base::Errc::kInvalidArgument) << "byte " << offset + i;
    }
  };
  auto vm = with_header<wire::CreateVm>(RequestType::kCreateVm);
  expect_refused(vm, offsetof(wire::CreateVm, reserved), 4);
  expect_refused(vm, offsetof(wire::RequestHeader, reserved), 4);
  auto queue = with_header<wire::CreateQueue>(RequestType::kCreateQueue);
  queue.slots = 16;
  expect_refused(queue, offsetof(wire::CreateQueue, reserved), 4);
  auto fence = with_header<wire::CreateFence>(RequestType::kCreateFence);
  expect_refused(fence, offsetof(wire::CreateFence, reserved), 4);
  for (const auto type : {RequestType::kDestroy, RequestType::kExport, RequestType::kRevoke,
                          RequestType::kShare, RequestType::kQueryObject})
    expect_refused(with_header<wire::ObjectRequest>(type), offsetof(wire::ObjectRequest, reserved),
                   8);
  auto import = with_header<wire::Import>(RequestType::kImport);
  expect_refused(import, offsetof(wire::Import, reserved), 4);
  for (std::size_t i = 0; i < 16; ++i) {
    auto bind = one_bind();
    reinterpret_cast<unsigned char*>(&bind.operations[0].reserved)[i] = 1;
    EXPECT_EQ(decode_bind(bind).error().code, base::Errc::kInvalidArgument) << i;
  }
  auto bind = one_bind();
  bind.reserved = 1;
  EXPECT_EQ(decode_bind(bind).error().code, base::Errc::kInvalidArgument);
}

TEST(DecodeRequest, VMB_5_ListsOfBindOperations) {
  auto bind = one_bind();
  auto result = decode_bind(bind);
  ASSERT_TRUE(result);
  const auto& one = std::get<request::Bind>(*result).operations;
  ASSERT_EQ(one.size(), 1u);
  EXPECT_TRUE(one[0].map && one[0].read && !one[0].write && !one[0].on_fault);
  EXPECT_EQ(one[0].va, base::GpuVa(0x10000));
  EXPECT_EQ(one[0].offset, 0x1000u);
  for (std::uint32_t i = 1; i < wire::kMaxBindOperations; ++i)
    bind.operations[i] = {.kind = GPUUMD_BIND_UNMAP,
                          .flags = 0,
                          .va = 0x1000 * i,
                          .bytes = 0x1000,
                          .buffer = 0,
                          .offset = 0,
                          .fault_window = 0,
                          .reserved = {}};
  bind.count = wire::kMaxBindOperations;
  bind.header.size = sizeof(bind);
  result = decode_bind(bind);
  ASSERT_TRUE(result);
  EXPECT_EQ(std::get<request::Bind>(*result).operations.size(), wire::kMaxBindOperations);
  bind.count = wire::kMaxBindOperations - 1;
  EXPECT_FALSE(decode_bind(bind)) << "size for more than count";
  bind.count = 0;
  EXPECT_FALSE(decode_bind(bind));
  bind.count = 0xFFFFFFFF;
  EXPECT_FALSE(decode_bind(bind));
}

TEST(DecodeRequest, BadBinds) {
  const auto refused = [](auto change, base::Errc code = base::Errc::kInvalidArgument) {
    auto bind = one_bind();
    change(bind.operations[0]);
    const auto result = decode_bind(bind);
    return !result && result.error().code == code;
  };
  EXPECT_TRUE(refused([](auto& op) { op.kind = 3; }));
  EXPECT_TRUE(refused([](auto& op) { op.va += 8; })) << "misaligned address";
  EXPECT_TRUE(refused([](auto& op) { op.bytes += 8; })) << "misaligned size";
  EXPECT_TRUE(refused([](auto& op) { op.bytes = 0; }));
  EXPECT_TRUE(refused([](auto& op) { op.offset += 8; })) << "misaligned offset";
  EXPECT_TRUE(refused([](auto& op) { op.flags = 0; })) << "no right";
  EXPECT_TRUE(refused([](auto& op) { op.buffer = 0; }));
  EXPECT_TRUE(refused([](auto& op) { op.fault_window = 4095; }));
  EXPECT_TRUE(refused([](auto& op) { op.kind = GPUUMD_BIND_UNMAP; })) << "unmap with a buffer";
  EXPECT_TRUE(refused([](auto& op) { op.va = ~std::uint64_t{0xFFF}; }, base::Errc::kOutOfRange));
  EXPECT_TRUE(
      refused([](auto& op) { op.offset = ~std::uint64_t{0xFFF}; }, base::Errc::kOutOfRange));
}

TEST(DecodeRequest, WrongSizesAndTypes) {
  auto vm = with_header<wire::CreateVm>(RequestType::kCreateVm);
  EXPECT_FALSE(decode_request(base::as_bytes(vm).first(24), ForeignFd()));
  auto unknown = with_header<wire::CreateVm>(static_cast<RequestType>(99));
  EXPECT_EQ(error_of(unknown), base::Errc::kUnsupported);
  auto open = with_header<wire::OpenShared>(RequestType::kOpenShared);
  EXPECT_EQ(error_of(open), base::Errc::kInvalidArgument) << "without a descriptor";
  auto wait = with_header<wire::WaitFence>(RequestType::kWaitFence);
  EXPECT_EQ(error_of(wait), base::Errc::kInvalidArgument) << "VMB-17: point 0";
  auto queue = with_header<wire::CreateQueue>(RequestType::kCreateQueue);
  for (const std::uint32_t slots : {0u, 8u, 17u, 131072u}) {
    queue.slots = slots;
    EXPECT_EQ(error_of(queue), base::Errc::kInvalidArgument) << slots;
  }
}

template <class T>
wire::CommandSlot command(wire::Operation operation, T body = {}, std::uint16_t slots = 1) {
  body.header = {operation, slots, 0};
  wire::CommandSlot slot;
  std::memcpy(&slot, &body, sizeof(slot));
  return slot;
}
base::Result<Command> decode_one(const wire::CommandSlot& slot) {
  return decode_command(std::span(&slot, 1));
}

TEST(DecodeCommand, Copy) {
  wire::CopyCommand copy{};
  copy.to = 0x1003;
  copy.from = 7;
  copy.bytes = 3;
  const auto result = decode_one(command(wire::Operation::kCopy, copy));
  ASSERT_TRUE(result);
  EXPECT_EQ(std::get<command::Copy>(*result).to, base::GpuVa(0x1003));
  copy.bytes = 0;
  EXPECT_FALSE(decode_one(command(wire::Operation::kCopy, copy)));
  copy.bytes = 2;
  copy.from = ~std::uint64_t{0};
  EXPECT_FALSE(decode_one(command(wire::Operation::kCopy, copy))) << "wraps";
  copy.from = 0;
  copy.reserved[3] = 1;
  EXPECT_FALSE(decode_one(command(wire::Operation::kCopy, copy)));
}

TEST(DecodeCommand, WriteTakesTwoSlots) {
  wire::WriteCommand write{};
  write.to = 0x1000;
  write.bytes = 8;
  wire::CommandSlot slots[2] = {command(wire::Operation::kWrite, write, 2), {}};
  slots[1].bytes[7] = std::byte{9};
  ASSERT_EQ(command_slots(slots[0]).value(), 2u);
  const auto result = decode_command(slots);
  ASSERT_TRUE(result);
  EXPECT_EQ(std::get<command::Write>(*result).data[7], std::byte{9});
  slots[1].bytes[8] = std::byte{1};
  EXPECT_FALSE(decode_command(slots)) << "bytes beyond the payload";
  EXPECT_FALSE(command_slots(command(wire::Operation::kWrite, write, 1)));
  EXPECT_FALSE(command_slots(command(wire::Operation::kCopy, wire::CopyCommand{}, 0)));
  EXPECT_FALSE(command_slots(command(wire::Operation::kCopy, wire::CopyCommand{}, 0xFFFF)));
}

TEST(DecodeCommand, VMB_17_PointZeroIsInvalid) {
  wire::FenceCommand fence{};
  fence.fence = 4;
  EXPECT_FALSE(decode_one(command(wire::Operation::kSignal, fence)));
  EXPECT_FALSE(decode_one(command(wire::Operation::kWait, fence)));
  fence.point = 1;
  EXPECT_TRUE(decode_one(command(wire::Operation::kSignal, fence)));
}

TEST(DecodeCommand, AtomicsAndOthers) {
  wire::AtomicCommand atomic{};
  atomic.to = 8;
  atomic.operation = GPUUMD_ATOMIC_ADD;
  atomic.width = 8;
  EXPECT_TRUE(decode_one(command(wire::Operation::kAtomic, atomic)));
  const auto refused = [&](auto change) {
    auto copy = atomic;
    change(copy);
    return !decode_one(command(wire::Operation::kAtomic, copy));
  };
  EXPECT_TRUE(refused([](auto& a) { a.width = 2; }));
  EXPECT_TRUE(refused([](auto& a) { a.to = 4; })) << "misaligned";
  EXPECT_TRUE(refused([](auto& a) { a.operation = 0; }));
  EXPECT_TRUE(refused([](auto& a) { a.operation = 7; }));
  EXPECT_TRUE(refused([](auto& a) { a.compare = 1; }));
  EXPECT_TRUE(refused([](auto& a) {
    a.width = 4;
    a.operand = std::uint64_t{1} << 32;
  }));
  EXPECT_FALSE(decode_one(command(static_cast<wire::Operation>(99), wire::CopyCommand{})));
  wire::TimestampCommand stamp{};
  stamp.to = 4;
  EXPECT_FALSE(decode_one(command(wire::Operation::kTimestamp, stamp)));
}

TEST(Status, EveryErrcHasItsOwnCodeAndBusyIsAgain) {
  EXPECT_EQ(to_status(base::Errc::kBusy), GPUUMD_AGAIN);
  std::vector<int> seen;
  for (int code = 1; code <= static_cast<int>(base::Errc::kSystem); ++code) {
    if (code == static_cast<int>(base::Errc::kBusy)) continue;
    const auto status = to_status(static_cast<base::Errc>(code));
    EXPECT_NE(status, GPUUMD_OK);
    EXPECT_EQ(std::count(seen.begin(), seen.end(), status), 0) << code;
    EXPECT_EQ(std::string(base::to_string(static_cast<base::Errc>(code))).empty(), false);
    seen.push_back(status);
  }
}

}  // namespace
}  // namespace gpuumd
