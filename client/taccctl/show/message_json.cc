#include "client/taccctl/show/message_json.h"

#include "proto/tacc/v1/validate_job.h"

namespace tacc::client {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;
using nlohmann::ordered_json;

// Value `index` of a repeated field, or the value of a single one (index -1).
ordered_json Value(const Message& message, const FieldDescriptor* field, int index) {
  const Reflection& r = *message.GetReflection();
  const bool one = index < 0;
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      return one ? r.GetInt32(message, field) : r.GetRepeatedInt32(message, field, index);
    case FieldDescriptor::CPPTYPE_INT64:
      return one ? r.GetInt64(message, field) : r.GetRepeatedInt64(message, field, index);
    case FieldDescriptor::CPPTYPE_UINT32:
      return one ? r.GetUInt32(message, field) : r.GetRepeatedUInt32(message, field, index);
    case FieldDescriptor::CPPTYPE_UINT64:
      return one ? r.GetUInt64(message, field) : r.GetRepeatedUInt64(message, field, index);
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return one ? r.GetDouble(message, field) : r.GetRepeatedDouble(message, field, index);
    case FieldDescriptor::CPPTYPE_FLOAT:
      return one ? r.GetFloat(message, field) : r.GetRepeatedFloat(message, field, index);
    case FieldDescriptor::CPPTYPE_BOOL:
      return one ? r.GetBool(message, field) : r.GetRepeatedBool(message, field, index);
    case FieldDescriptor::CPPTYPE_ENUM:
      return EnumValueInJobFile(one ? *r.GetEnum(message, field) : *r.GetRepeatedEnum(message, field, index));
    case FieldDescriptor::CPPTYPE_STRING:
      return one ? r.GetString(message, field) : r.GetRepeatedString(message, field, index);
    case FieldDescriptor::CPPTYPE_MESSAGE:
      return MessageJson(one ? r.GetMessage(message, field) : r.GetRepeatedMessage(message, field, index));
  }
  return nullptr;
}

ordered_json Map(const Message& message, const FieldDescriptor* field) {
  // Protobuf's own order of a map is not defined.
  std::map<std::string, ordered_json> entries;
  for (int i = 0; i < message.GetReflection()->FieldSize(message, field); ++i) {
    const Message& entry = message.GetReflection()->GetRepeatedMessage(message, field, i);
    const ordered_json key = Value(entry, field->message_type()->map_key(), -1);
    entries[key.is_string() ? key.get<std::string>() : key.dump()] =
        Value(entry, field->message_type()->map_value(), -1);
  }
  ordered_json json = ordered_json::object();
  for (auto& [key, value] : entries) json[key] = std::move(value);
  return json;
}

}  // namespace

ordered_json MessageJson(const Message& message) {
  ordered_json json = ordered_json::object();
  const auto& type = *message.GetDescriptor();
  for (int i = 0; i < type.field_count(); ++i) {
    const FieldDescriptor* field = type.field(i);
    const std::string name(field->name());
    if (field->is_map()) {
      json[name] = Map(message, field);
    } else if (field->is_repeated()) {
      json[name] = ordered_json::array();
      for (int k = 0; k < message.GetReflection()->FieldSize(message, field); ++k)
        json[name].push_back(Value(message, field, k));
    } else if (!field->has_presence() || message.GetReflection()->HasField(message, field)) {
      json[name] = Value(message, field, -1);
    }
  }
  return json;
}

std::string JsonLine(const ordered_json& json) {
  return json.dump(-1, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace tacc::client
