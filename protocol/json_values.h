// Values of declared fields, in JSON and out of it.
#ifndef TACC_PROTOCOL_JSON_VALUES_H_
#define TACC_PROTOCOL_JSON_VALUES_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "nlohmann/json.hpp"
#include "protocol/field.h"

namespace tacc::protocol {

// Takes a field's value. Returns what was wanted instead; nothing when it was taken.
std::optional<std::string> Take(const nlohmann::json& json, Range range, std::string* value);
std::optional<std::string> Take(const nlohmann::json& json, Range range, bool* value);
std::optional<std::string> Take(const nlohmann::json& json, Range range, int* value);
std::optional<std::string> Take(const nlohmann::json& json, Range range, int64_t* value);
std::optional<std::string> Take(const nlohmann::json& json, Range range, uint64_t* value);
std::optional<std::string> Take(const nlohmann::json& json, Range range, double* value);
std::optional<std::string> Take(const nlohmann::json& json, Range range, std::map<std::string, std::string>* value);
std::optional<std::string> Take(const nlohmann::json& json, Range range, nlohmann::json* value);
// Of objects.
std::optional<std::string> Take(const nlohmann::json& json, Range range, std::vector<nlohmann::json>* value);

}  // namespace tacc::protocol

#endif  // TACC_PROTOCOL_JSON_VALUES_H_
