// Protobuf messages as JSON for people's scripts.
#ifndef TACC_CLIENT_TACCCTL_SHOW_MESSAGE_JSON_H_
#define TACC_CLIENT_TACCCTL_SHOW_MESSAGE_JSON_H_

#include "google/protobuf/message.h"
#include "nlohmann/json.hpp"

namespace tacc::client {

// `message` with the schema's field names: all integers as numbers, enum values in lower case without prefix, floats in
// the shortest form that reads back the same (non-finite ones as null), unset optional fields and sections left out,
// other fields always there.
nlohmann::ordered_json MessageJson(const google::protobuf::Message& message);

// One line, in bytes that are valid JSON whatever the text in it.
std::string JsonLine(const nlohmann::ordered_json& json);

}  // namespace tacc::client

#endif  // TACC_CLIENT_TACCCTL_SHOW_MESSAGE_JSON_H_
