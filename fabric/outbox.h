// Collects a node's actions and remembers who waits for the answer of each.
#pragma once

#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "fabric/action.h"

namespace fabric {

// Whose answer it is. An owner that lost interest forgets the op; the answer then finds nobody.
struct OpOwner {
  enum Kind : std::uint8_t { kPost, kPointers, kPin, kNpa, kDetach, kStep };
  Kind kind = kStep;
  AccelId peer{};        // kPost, kPointers
  RingType ring{};       // kPost
  std::uint64_t id = 0;  // kPin, kNpa: export serial; kDetach: import
};

class Outbox {
 public:
  // For actions without an answer.
  void put(Action action) { actions_.push_back(std::move(action)); }

  // For actions with one: fills in `op`.
  template <class A>
  OpId ask(const OpOwner& owner, A action) {
    const OpId op(++last_op_);
    action.op = op;
    owners_.emplace(op, owner);
    actions_.emplace_back(std::move(action));
    return op;
  }

  std::optional<OpOwner> answered(OpId op) {
    const auto it = owners_.find(op);
    if (it == owners_.end()) return std::nullopt;
    const OpOwner owner = it->second;
    owners_.erase(it);
    return owner;
  }
  void forget(OpId op) { owners_.erase(op); }

  void complete(Token token, base::Result<ImportedMemory> result) {
    actions_.emplace_back(Complete{token, std::move(result)});
  }
  void complete(const std::vector<Token>& tokens, const base::Error& error) {
    for (Token token : tokens) complete(token, std::unexpected(error));
  }

  std::vector<Action> take() { return std::exchange(actions_, {}); }

 private:
  std::vector<Action> actions_;
  std::map<OpId, OpOwner> owners_;
  std::uint64_t last_op_ = 0;
};

}  // namespace fabric
