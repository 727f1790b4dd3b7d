// As much of JSON Schema as tools/gpuctl/schema.json uses.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace gpuctl_test {

// What is wrong with `value`, with its place; empty: nothing. Also wrong: a member that the schema
// does not name, so that what gpuctl gives is written down.
std::string mismatch(const nlohmann::json& root, const nlohmann::json& schema,
                     const nlohmann::json& value, const std::string& place = "$");

}  // namespace gpuctl_test
