// Snapshots as text.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace gpuctl {

// Of a document that take_snapshot() or run_demo() gave. What a daemon of another version leaves
// out is shown as "-".
std::string render(const nlohmann::json& document);

}  // namespace gpuctl
