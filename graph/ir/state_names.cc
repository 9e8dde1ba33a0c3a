#include "graph/ir/state_names.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace tacc::graph {
namespace {

constexpr char kWeights[] = "weights/", kCopies[] = "copies/", kGradients[] = "gradients/",
               kFirstMoments[] = "exp_avg/", kSecondMoments[] = "exp_avg_sq/", kMomenta[] = "momentum_buffer/",
               kRowMoments[] = "exp_avg_sq_row/", kColumnMoments[] = "exp_avg_sq_col/", kAverages[] = "ema/";

}  // namespace

std::string WeightState(absl::string_view parameter) { return absl::StrCat(kWeights, parameter); }
std::string CopyState(absl::string_view parameter) { return absl::StrCat(kCopies, parameter); }
std::string GradientState(absl::string_view parameter) { return absl::StrCat(kGradients, parameter); }
std::string FirstMomentState(absl::string_view parameter) { return absl::StrCat(kFirstMoments, parameter); }
std::string SecondMomentState(absl::string_view parameter) { return absl::StrCat(kSecondMoments, parameter); }
std::string MomentumState(absl::string_view parameter) { return absl::StrCat(kMomenta, parameter); }
std::string RowMomentState(absl::string_view parameter) { return absl::StrCat(kRowMoments, parameter); }
std::string ColumnMomentState(absl::string_view parameter) { return absl::StrCat(kColumnMoments, parameter); }
std::string AverageState(absl::string_view parameter) { return absl::StrCat(kAverages, parameter); }

std::string ChangedBuffer(absl::string_view output) {
  return absl::ConsumePrefix(&output, "buffer:") ? std::string(output) : "";
}

std::string ParameterOf(const State& state) { return state.name.substr(state.name.find('/') + 1); }

std::vector<absl::string_view> StateNamePrefixes(StateKind kind) {
  switch (kind) {
    case StateKind::kWeight:
      return {kWeights};
    case StateKind::kCopy:
      return {kCopies};
    case StateKind::kOptimizer:
      return {kFirstMoments, kSecondMoments, kMomenta, kRowMoments, kColumnMoments};
    case StateKind::kAverage:
      return {kAverages};
    case StateKind::kLossScale:
      return {"loss_scale/"};
    case StateKind::kGradient:
      return {kGradients};
    case StateKind::kCounter:
      return {"counters/"};
    case StateKind::kStash:
      return {"stash/"};
  }
  return {};
}

}  // namespace tacc::graph
