// Values of a job file, read strictly: one spelling for each, so that nothing is read as something else.
#ifndef TACC_JOBFILE_SCALAR_H_
#define TACC_JOBFILE_SCALAR_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "jobfile/yaml_tree.h"

namespace tacc::jobfile {

// Each reads a scalar node as the value of field `name`. InvalidArgument says what is wrong and what to write,
// beginning with the field's name.

// A decimal whole number without quotes, leading zeros, sign +, exponent or underscores.
absl::StatusOr<int32_t> ReadInt32(const YamlNode& node, const std::string& name);

// A finite decimal number: 3, -0.5, 3e-4.
absl::StatusOr<double> ReadDouble(const YamlNode& node, const std::string& name);

// true or false.
absl::StatusOr<bool> ReadBool(const YamlNode& node, const std::string& name);

// Text. What YAML may take for a number, a boolean or nothing must be in quotes.
absl::StatusOr<std::string> ReadString(const YamlNode& node, const std::string& name);

// "a list", "text", ...
std::string KindOf(const YamlNode& node);

}  // namespace tacc::jobfile

#endif  // TACC_JOBFILE_SCALAR_H_
