#include "client/taccctl/show/measured_steps.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace tacc::client {
namespace {

constexpr const char* kAxes[] = {"pp", "dp", "fsdp", "ep", "cp", "tp"};
// Columns that are fields of a job.
const std::vector<std::pair<std::string, std::string>>& JobColumns() {
  static const std::vector<std::pair<std::string, std::string>> fields{
      {"per_device_train_batch_size", "train.per_device_train_batch_size"},
      {"global_batch_size", "train.global_batch_size"},
      {"schedule", "dist.pp.schedule"},
      {"num_chunks", "dist.pp.num_chunks"},
      {"zero_stage", "dist.fsdp.zero_stage"},
      {"reduce_each_micro_batch", "dist.fsdp.reduce_each_micro_batch"},
      {"gc", "memory.gc"}};
  return fields;
}

std::vector<std::string> AllColumns() {
  std::vector<std::string> columns = {"job", "step_seconds", "world"};
  columns.insert(columns.end(), std::begin(kAxes), std::end(kAxes));
  for (const auto& [column, field] : JobColumns()) columns.push_back(column);
  return columns;
}

std::vector<std::string> CellsOf(std::string line) {
  line = line.substr(0, line.find('#'));
  std::vector<std::string> cells;
  for (absl::string_view cell : absl::StrSplit(line, ',')) cells.emplace_back(absl::StripAsciiWhitespace(cell));
  return cells;
}

class RowReader {
 public:
  RowReader(std::string place, const std::map<std::string, std::string>& cells, std::vector<std::string>* problems)
      : place_(std::move(place)), cells_(cells), problems_(problems) {}

  MeasuredStep Read(const std::filesystem::path& folder, const JobArgument& job) {
    MeasuredStep step;
    step.place = place_;
    step.job = job;
    if (const std::string& file = Cell("job"); !file.empty()) step.job.file = (folder / file).lexically_normal();
    if (const std::string& text = Cell("step_seconds");
        !absl::SimpleAtod(text, &step.seconds) || !std::isfinite(step.seconds) || step.seconds <= 0) {
      Complain("step_seconds", text, "seconds above 0");
    }
    step.gpus = Size("world", "");
    int64_t product = 1;
    for (const char* axis : kAxes) {
      const int size = Size(axis, "1");
      product *= size;
      step.job.sets.push_back(absl::StrCat("dist.", axis, ".size=", size));
    }
    if (step.gpus > 0 && product > 0 && product != step.gpus)
      problems_->push_back(absl::StrCat(place_, ": world = ", step.gpus, ", but the axes multiply to ", product));
    for (const auto& [column, field] : JobColumns()) {
      const std::string& cell = Cell(column);
      if (cell.empty()) continue;
      // Of an axis that splits nothing there is nothing to say.
      if (field.rfind("dist.fsdp.", 0) == 0 && Size("fsdp", "1") == 1 && Size("cp", "1") == 1) continue;
      if (field.rfind("dist.pp.", 0) == 0 && Size("pp", "1") == 1) continue;
      if (column == "num_chunks" && cell == "1") continue;
      step.job.sets.push_back(absl::StrCat(field, "=", cell));
    }
    return step;
  }

 private:
  const std::string& Cell(const std::string& column) const {
    static const std::string none;
    const auto it = cells_.find(column);
    return it == cells_.end() ? none : it->second;
  }
  // 0 for a number that is none, once said.
  int Size(const std::string& column, const std::string& otherwise) {
    const std::string text = Cell(column).empty() ? otherwise : Cell(column);
    int size = 0;
    if (absl::SimpleAtoi(text, &size) && size > 0 && size <= 1'000'000) return size;
    Complain(column, text, "a whole number from 1 to 1000000");
    return 0;
  }
  void Complain(const std::string& column, const std::string& text, const char* wanted) {
    if (!told_.insert(column).second) return;
    problems_->push_back(absl::StrCat(place_, ": ", column, text.empty() ? " is missing" : absl::StrCat(" = ", text),
                                      "; wanted ", wanted));
  }

  const std::string place_;
  const std::map<std::string, std::string>& cells_;
  std::vector<std::string>* problems_;
  std::set<std::string> told_;
};

}  // namespace

absl::StatusOr<std::vector<MeasuredStep>> ReadMeasuredSteps(const std::string& path, const JobArgument& job) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored))
    return absl::InvalidArgumentError(absl::StrCat(path, ": is a folder; give the path of a table (CSV)"));
  std::ifstream file(path);
  if (!file) return absl::NotFoundError(absl::StrCat(path, ": cannot be read; give the path of a table (CSV)"));
  std::vector<MeasuredStep> steps;
  std::vector<std::string> names, problems, line_cells;
  std::string line;
  for (int number = 1; std::getline(file, line); ++number) {
    const std::string place = absl::StrCat(path, ":", number);
    if (number == 1) line = std::string(absl::StripPrefix(line, "\xEF\xBB\xBF"));  // as spreadsheets begin
    line_cells = CellsOf(line);
    if (line_cells.size() == 1 && line_cells[0].empty()) continue;
    if (names.empty()) {
      names = line_cells;
      const std::vector<std::string> known = AllColumns();
      if (names.size() == 1 && names[0].find_first_of(";\t") != std::string::npos) {
        problems.push_back(absl::StrCat(place, ": one column; separate columns by commas"));
        break;
      }
      for (size_t i = 0; i < names.size(); ++i) {
        if (std::find(known.begin(), known.end(), names[i]) == known.end())
          problems.push_back(
              absl::StrCat(place, ": column \"", names[i], "\" is not known; known: ", absl::StrJoin(known, ", ")));
        if (std::find(names.begin(), names.begin() + static_cast<int64_t>(i), names[i]) !=
            names.begin() + static_cast<int64_t>(i))
          problems.push_back(absl::StrCat(place, ": column \"", names[i], "\" is there twice"));
      }
      if (!problems.empty()) break;
      continue;
    }
    if (line_cells.size() != names.size()) {
      problems.push_back(
          absl::StrCat(place, ": ", line_cells.size(), " cells; the first line names ", names.size(), " columns"));
      continue;
    }
    std::map<std::string, std::string> cells;
    for (size_t i = 0; i < names.size(); ++i) cells[names[i]] = line_cells[i];
    steps.push_back(RowReader(place, cells, &problems).Read(std::filesystem::path(path).parent_path(), job));
  }
  if (problems.empty() && steps.empty()) problems.push_back(absl::StrCat(path, ": no row with a measured step"));
  if (!problems.empty()) return absl::InvalidArgumentError(absl::StrJoin(problems, "\n"));
  return steps;
}

}  // namespace tacc::client
