#include "tests/gpuctl/schema.h"

#include <regex>

namespace gpuctl_test {
namespace {

using nlohmann::json;

bool is_type(const json& value, const std::string& type) {
  if (type == "object") return value.is_object();
  if (type == "array") return value.is_array();
  if (type == "string") return value.is_string();
  if (type == "integer") return value.is_number_integer();
  if (type == "number") return value.is_number();
  if (type == "boolean") return value.is_boolean();
  return type == "null" && value.is_null();
}

bool has_type(const json& value, const json& types) {
  if (types.is_string()) return is_type(value, types.get<std::string>());
  for (const auto& type : types)
    if (is_type(value, type.get<std::string>())) return true;
  return false;
}

std::string wrong_members(const json& root, const json& schema, const json& value,
                          const std::string& place) {
  for (const auto& name : schema.value("required", json::array()))
    if (!value.contains(name.get<std::string>())) return place + ": no " + name.get<std::string>();
  if (!schema.contains("properties")) return {};
  for (const auto& [name, member] : value.items()) {
    const auto known = schema["properties"].find(name);
    if (known == schema["properties"].end()) return place + "." + name + ": not in the schema";
    if (auto bad = mismatch(root, *known, member, place + "." + name); !bad.empty()) return bad;
  }
  return {};
}

}  // namespace

std::string mismatch(const json& root, const json& schema, const json& value,
                     const std::string& place) {
  if (schema.contains("$ref")) {
    const auto path = schema["$ref"].get<std::string>().substr(1);
    return mismatch(root, root.at(json::json_pointer(path)), value, place);
  }
  if (schema.contains("type") && !has_type(value, schema["type"]))
    return place + ": " + value.dump() + " is no " + schema["type"].dump();
  if (schema.contains("enum") &&
      std::find(schema["enum"].begin(), schema["enum"].end(), value) == schema["enum"].end())
    return place + ": " + value.dump() + " is not one of " + schema["enum"].dump();
  if (schema.contains("pattern") &&
      !std::regex_search(value.get<std::string>(),
                         std::regex(schema["pattern"].get<std::string>())))
    return place + ": " + value.dump() + " does not match";
  if (value.is_object()) return wrong_members(root, schema, value, place);
  if (value.is_array() && schema.contains("items"))
    for (std::size_t i = 0; i < value.size(); ++i)
      if (auto bad =
              mismatch(root, schema["items"], value[i], place + "[" + std::to_string(i) + "]");
          !bad.empty())
        return bad;
  return {};
}

}  // namespace gpuctl_test
