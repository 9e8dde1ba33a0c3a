#include "graph/ops/einsum_spec.h"

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

namespace tacc::graph {
namespace {

bool Has(const std::string& letters, char letter) { return letters.find(letter) != std::string::npos; }

// True when the three groups of letters lie contiguous in `letters`, in any order.
bool IsGrouped(std::string letters, const std::string& x, const std::string& y, const std::string& z) {
  const std::string* groups[3] = {&x, &y, &z};
  bool used[3] = {x.empty(), y.empty(), z.empty()};
  while (!letters.empty()) {
    int found = -1;
    for (int g = 0; g < 3; ++g) {
      if (used[g] || groups[g]->size() > letters.size()) continue;
      if (letters.compare(letters.size() - groups[g]->size(), groups[g]->size(), *groups[g]) == 0) found = g;
    }
    if (found < 0) return false;
    used[found] = true;
    letters.resize(letters.size() - groups[found]->size());
  }
  return true;
}

}  // namespace

absl::StatusOr<EinsumSpec> ParseEinsum(absl::string_view spec) {
  auto error = [&](absl::string_view what) {
    return absl::InvalidArgumentError(absl::StrCat("spec=\"", spec, "\": ", what));
  };
  const size_t comma = spec.find(','), arrow = spec.find("->");
  if (comma == absl::string_view::npos || arrow == absl::string_view::npos || comma > arrow) {
    return error("wanted the form \"bsk,nk->bsn\"");
  }
  EinsumSpec out{std::string(spec.substr(0, comma)), std::string(spec.substr(comma + 1, arrow - comma - 1)),
                 std::string(spec.substr(arrow + 2))};
  auto has = [](const std::string& part, char c) { return part.find(c) != std::string::npos; };
  for (const std::string* part : {&out.a, &out.b, &out.y}) {
    for (size_t i = 0; i < part->size(); ++i) {
      const char c = (*part)[i];
      if (!absl::ascii_isalpha(c)) return error(absl::StrCat("'", std::string(1, c), "' is no letter"));
      if (part->find(c, i + 1) != std::string::npos)
        return error(absl::StrCat("letter '", std::string(1, c), "' is repeated in one tensor"));
      const int count = has(out.a, c) + has(out.b, c) + has(out.y, c);
      if (count < 2) return error(absl::StrCat("letter '", std::string(1, c), "' is in one tensor only"));
    }
  }
  return out;
}

Factors FactorsOf(const OpCall& call, int a) {
  Factors factors{call.in(a), call.in(a + 1)};
  if (const int64_t parts = call.attr<int64_t>("parts"); parts > 0) {
    int64_t& extent = factors.a.dims[call.attr<int64_t>("dim")];
    extent = extent / parts * (call.attr<int64_t>("limit") - call.attr<int64_t>("start"));
  }
  for (size_t part = a + 2; part < call.operands.size(); ++part) factors.b.dims[0] += call.operands[part].dims[0];
  return factors;
}

absl::StatusOr<std::map<char, int64_t>> EinsumExtents(const EinsumSpec& spec, const TensorType& a,
                                                      const TensorType& b) {
  std::map<char, int64_t> extents;
  for (const auto& [letters, type, name] : {std::tuple(&spec.a, &a, "a"), std::tuple(&spec.b, &b, "b")}) {
    if (type->rank() != static_cast<int>(letters->size())) {
      return absl::InvalidArgumentError(
          absl::StrCat(name, " is ", type->ToString(), "; wanted ", letters->size(), " dims for \"", *letters, "\""));
    }
    for (size_t i = 0; i < letters->size(); ++i) {
      const auto [it, inserted] = extents.emplace((*letters)[i], type->dims[i]);
      if (!inserted && it->second != type->dims[i]) {
        return absl::InvalidArgumentError(absl::StrCat("'", std::string(1, (*letters)[i]), "' is ", it->second,
                                                       " in a, ", a.ToString(), ", but ", type->dims[i], " in b, ",
                                                       b.ToString()));
      }
    }
  }
  return extents;
}

EinsumCopies EinsumCopiesOf(const EinsumSpec& spec) {
  std::string batch, rows, columns, contracted;
  for (char c : spec.y) (Has(spec.a, c) ? Has(spec.b, c) ? batch : rows : columns) += c;
  std::string left = spec.a;
  const bool swapped = !spec.y.empty() && !Has(spec.b, spec.y.back());
  if (swapped) left = spec.b;
  for (char c : left) {
    if (!Has(spec.y, c)) contracted += c;
  }
  const auto batch_last = [&](const std::string& letters) {
    return !batch.empty() && letters.size() > batch.size() && Has(batch, letters.back());
  };
  return {!IsGrouped(spec.a, batch, rows, contracted) || batch_last(spec.a),
          !IsGrouped(spec.b, batch, columns, contracted) || batch_last(spec.b),
          !IsGrouped(spec.y, batch, rows, columns) || batch_last(spec.y)};
}

}  // namespace tacc::graph
