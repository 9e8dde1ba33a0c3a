#include "graph/ir/weight_init.h"

#include <cmath>
#include <limits>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace tacc::graph {
namespace {

using Kind = WeightInit::Kind;

struct Form {
  absl::string_view name;
  Kind kind;
  int num_arguments;
};
constexpr Form kForms[] = {{"constant", Kind::kConstant, 1},
                           {"normal", Kind::kNormal, 1},
                           {"truncated_normal", Kind::kTruncatedNormal, 2},
                           {"uniform", Kind::kUniform, 2}};

bool FitsF32(double value) { return std::abs(value) <= std::numeric_limits<float>::max(); }

bool MakesSense(const WeightInit& init) {
  if (!FitsF32(init.first) || !FitsF32(init.second)) return false;
  switch (init.kind) {
    case Kind::kConstant:
      return true;
    case Kind::kNormal:
      return init.first >= 0;
    case Kind::kTruncatedNormal:
      return init.first > 0 && init.second > 0;
    case Kind::kUniform:
      return init.first <= init.second;
  }
  return false;
}

}  // namespace

absl::StatusOr<WeightInit> ParseWeightInit(absl::string_view text) {
  if (text == "zeros") return WeightInit{};
  if (text == "ones") return WeightInit{.first = 1};
  const absl::Status unknown = absl::InvalidArgumentError(
      absl::StrCat("init \"", text,
                   "\" is not known; use normal(STD), truncated_normal(STD,BOUND), uniform(LOW,HIGH), constant(VALUE), "
                   "ones or zeros, with numbers that f32 can hold, STD at least 0, BOUND above 0, LOW at most HIGH"));
  const size_t bracket = text.find('(');
  if (bracket == absl::string_view::npos || !absl::EndsWith(text, ")")) return unknown;
  for (const Form& form : kForms) {
    if (form.name != text.substr(0, bracket)) continue;
    const std::vector<absl::string_view> arguments =
        absl::StrSplit(text.substr(bracket + 1, text.size() - bracket - 2), ',');
    WeightInit init{.kind = form.kind};
    double* const numbers[] = {&init.first, &init.second};
    if (static_cast<int>(arguments.size()) != form.num_arguments) return unknown;
    for (size_t i = 0; i < arguments.size(); ++i) {
      if (!absl::SimpleAtod(arguments[i], numbers[i])) return unknown;
    }
    if (!MakesSense(init)) return unknown;
    return init;
  }
  return unknown;
}

}  // namespace tacc::graph
