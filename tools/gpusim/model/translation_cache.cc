#include "tools/gpusim/model/translation_cache.h"

#include <bit>
#include <cassert>
#include <utility>
#include <vector>

namespace gpusim {

FlushScope FlushScope::of(base::Value<INVALIDATE_REQ> request) {
  using R = INVALIDATE_REQ;
  FlushScope scope;
  scope.ptes = request.get<R::L1_PTES>() && request.get<R::L2_PTES>();
  scope.pdes = {request.get<R::L2_PDE0>(), request.get<R::L2_PDE1>(), request.get<R::L2_PDE2>(),
                request.get<R::L2_PDE3>()};
  scope.only_4k = request.get<R::ONLY_4K_PAGES>();
  return scope;
}

const Leaf* TranslationCache::remember(Context& context, const Leaf& leaf) {
  Leaf& slot = context.recent[context.oldest_recent];
  context.oldest_recent = (context.oldest_recent + 1) % kRecent;
  slot = leaf;
  return &slot;
}

const Leaf* TranslationCache::find_in_map(Context& context, std::uint64_t page) {
  for (std::uint64_t spans = context.spans; spans != 0; spans &= spans - 1) {
    const auto at = context.leaves.find(key(page, std::countr_zero(spans)));
    if (at != context.leaves.end()) return remember(context, at->second);
  }
  return nullptr;
}

const Leaf* TranslationCache::insert(std::uint8_t vmid, const Leaf& leaf) {
  assert(leaf.span_log2 < kSpans);
  Context& context = contexts_[vmid];
  const auto [at, added] = context.leaves.try_emplace(key(leaf.first_page, leaf.span_log2), leaf);
  assert(added && "a walk for something that was cached");
  if (context.by_span[leaf.span_log2]++ == 0) context.spans |= std::uint64_t{1} << leaf.span_log2;
  return remember(context, at->second);
}

std::optional<TableAddress> TranslationCache::directory(std::uint8_t vmid, unsigned level,
                                                        std::uint64_t page, unsigned shift) const {
  const auto& known = contexts_[vmid].directories[level - 1];
  const auto at = known.find(page >> shift);
  if (at == known.end()) return std::nullopt;
  return at->second;
}

void TranslationCache::insert_directory(std::uint8_t vmid, unsigned level, std::uint64_t page,
                                        unsigned shift, TableAddress table) {
  contexts_[vmid].directories[level - 1].insert_or_assign(page >> shift, table);
}

template <class Goes>
void TranslationCache::erase_leaves(Context& context, Goes goes) {
  std::vector<Leaf> gone;
  for (auto at = context.leaves.begin(); at != context.leaves.end();) {
    const auto here = at++;
    if (!goes(here->second)) continue;
    const Leaf& leaf = here->second;
    if (--context.by_span[leaf.span_log2] == 0)
      context.spans &= ~(std::uint64_t{1} << leaf.span_log2);
    gone.push_back(leaf);
    context.leaves.erase(here);
  }
  if (gone.empty()) return;
  context.forget_recent();
  for (const Leaf& leaf : gone) dropped_(leaf);
}

void TranslationCache::flush(std::uint8_t vmid, const FlushScope& scope) {
  Context& context = contexts_[vmid];
  if (scope.ptes) {
    erase_leaves(context, [&scope](const Leaf& leaf) {
      if (scope.only_4k && leaf.span_log2 != 0) return false;
      // A leaf that stood in a directory is held with that directory's entries.
      return leaf.level == 0 || scope.pdes[leaf.level - 1];
    });
  }
  for (unsigned level = 1; level <= 4; ++level)
    if (scope.pdes[level - 1]) context.directories[level - 1].clear();
  if (scope.pdes[3]) context.root.reset();
}

void TranslationCache::drop_if(const std::function<bool(const Leaf&)>& goes) {
  for (Context& context : contexts_) erase_leaves(context, goes);
}

}  // namespace gpusim
