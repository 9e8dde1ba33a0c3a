#include "kernels/einsum_plan.h"

#include <map>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace tacc::kernels {
namespace {

using Extents = std::map<char, int64_t>;

bool Has(const std::string& letters, char letter) { return letters.find(letter) != std::string::npos; }

int64_t Product(const std::string& letters, const Extents& extents) {
  int64_t product = 1;
  for (char letter : letters) product *= extents.at(letter);
  return product;
}

absl::Status ReadOperand(const std::string& spec, const std::string& letters, const Dims& dims, Extents* extents) {
  if (static_cast<int>(letters.size()) != dims.rank()) {
    return absl::InvalidArgumentError(absl::StrCat("einsum \"", spec, "\": \"", letters, "\" names ", letters.size(),
                                                   " dims, the operand has ", dims.rank()));
  }
  for (size_t i = 0; i < letters.size(); ++i) {
    if (letters.find(letters[i]) != i) {
      return absl::InvalidArgumentError(
          absl::StrCat("einsum \"", spec, "\": letter ", std::string(1, letters[i]), " is twice in \"", letters, "\""));
    }
    const int64_t extent = dims[static_cast<int>(i)];
    auto [it, inserted] = extents->insert({letters[i], extent});
    if (!inserted && it->second != extent) {
      return absl::InvalidArgumentError(absl::StrCat("einsum \"", spec, "\": letter ", std::string(1, letters[i]),
                                                     " is ", it->second, " in the first operand and ", extent,
                                                     " in the second"));
    }
  }
  return absl::OkStatus();
}

// The strided view of a tensor with these letters, if the three groups lie contiguous in it, in any order.
bool Group(const std::string& letters, const std::string& batch, const std::string& rows, const std::string& columns,
           const Extents& extents, EinsumView* view) {
  const std::string* groups[3] = {&batch, &rows, &columns};
  int64_t strides[3] = {0, 0, 0};
  int64_t stride = 1;
  size_t end = letters.size();
  bool used[3] = {batch.empty(), rows.empty(), columns.empty()};
  while (end > 0) {
    int found = -1;
    for (int g = 0; g < 3; ++g) {
      if (used[g] || groups[g]->size() > end) continue;
      if (letters.compare(end - groups[g]->size(), groups[g]->size(), *groups[g]) == 0) found = g;
    }
    if (found < 0) return false;
    used[found] = true;
    strides[found] = stride;
    stride *= Product(*groups[found], extents);
    end -= groups[found]->size();
  }
  view->perm = Dims();
  view->batch_stride = strides[0];
  view->row_stride = strides[1];
  view->column_stride = strides[2];
  return true;
}

// Matrix products want rows or columns dense.
bool IsMatrix(const EinsumView& view, int64_t rows, int64_t columns) {
  return rows == 1 || columns == 1 || view.row_stride == 1 || view.column_stride == 1;
}

Dims Permutation(const std::string& from, const std::string& to) {
  Dims perm;
  for (char letter : to) perm.push_back(static_cast<int64_t>(from.find(letter)));
  return perm;
}

EinsumView MakeView(const std::string& letters, const std::string& batch, const std::string& rows,
                    const std::string& columns, const Extents& extents) {
  EinsumView view;
  const int64_t num_rows = Product(rows, extents), num_columns = Product(columns, extents);
  if (Group(letters, batch, rows, columns, extents, &view) && IsMatrix(view, num_rows, num_columns)) {
    // A group of no letters or of extent 1 may have any stride; these make every view a plain matrix.
    if (num_columns == 1 && view.row_stride != 1) view.column_stride = 1;
    if (num_rows == 1 && view.column_stride != 1) view.row_stride = 1;
    if (num_rows == 1 && view.column_stride == 1) view.row_stride = num_columns;
    if (num_columns == 1 && view.row_stride == 1) view.column_stride = num_rows;
    return view;
  }
  view.perm = Permutation(letters, batch + rows + columns);
  view.column_stride = 1;
  view.row_stride = num_columns;
  view.batch_stride = num_rows * num_columns;
  return view;
}

}  // namespace

absl::StatusOr<EinsumPlan> PlanEinsum(const std::string& spec, const Dims& a, const Dims& b) {
  const size_t comma = spec.find(','), arrow = spec.find("->");
  if (comma == std::string::npos || arrow == std::string::npos || comma > arrow) {
    return absl::InvalidArgumentError(absl::StrCat("einsum \"", spec, "\": want the form \"ab,bc->ac\""));
  }
  std::string left = spec.substr(0, comma), right = spec.substr(comma + 1, arrow - comma - 1);
  const std::string result = spec.substr(arrow + 2);
  Extents extents;
  if (absl::Status s = ReadOperand(spec, left, a, &extents); !s.ok()) return s;
  if (absl::Status s = ReadOperand(spec, right, b, &extents); !s.ok()) return s;

  EinsumPlan plan;
  for (size_t i = 0; i < result.size(); ++i) {
    const char letter = result[i];
    if (result.find(letter) != i || extents.count(letter) == 0) {
      return absl::InvalidArgumentError(absl::StrCat("einsum \"", spec, "\": letter ", std::string(1, letter),
                                                     " of the result is repeated or in no operand"));
    }
    plan.result_dims.push_back(extents.at(letter));
  }
  for (const auto& [letter, extent] : extents) {
    if (Has(left, letter) + Has(right, letter) + Has(result, letter) < 2) {
      return absl::InvalidArgumentError(
          absl::StrCat("einsum \"", spec, "\": letter ", std::string(1, letter), " is in one operand only"));
    }
  }
  // The result's last letter should be a column: its rows are then dense.
  if (!result.empty() && !Has(right, result.back())) {
    std::swap(left, right);
    plan.swapped = true;
  }
  std::string batch, rows, columns, contracted;
  for (char letter : result) {
    (Has(left, letter) ? Has(right, letter) ? batch : rows : columns) += letter;
  }
  for (char letter : left) {
    if (!Has(result, letter)) contracted += letter;
  }
  plan.batch = Product(batch, extents);
  plan.m = Product(rows, extents);
  plan.n = Product(columns, extents);
  plan.k = Product(contracted, extents);
  plan.left = MakeView(left, batch, rows, contracted, extents);
  plan.right = MakeView(right, batch, contracted, columns, extents);
  plan.result = MakeView(result, batch, rows, columns, extents);
  return plan;
}

EinsumView ViewOfPart(const EinsumView& view, const Dims& dims, const EinsumPart& part) {
  const int64_t run = dims.Product(part.dim, dims.rank());
  EinsumView result = view;
  for (int64_t* stride : {&result.batch_stride, &result.row_stride, &result.column_stride}) {
    if (run > 0 && *stride % run == 0) *stride = *stride / run * part.pitch;
  }
  return result;
}

}  // namespace tacc::kernels
