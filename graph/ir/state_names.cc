#include "graph/ir/state_names.h"

#include "absl/strings/str_cat.h"

namespace tacc::graph {
namespace {

constexpr char kWeights[] = "weights/", kCopies[] = "copies/", kGradients[] = "gradients/",
               kFirstMoments[] = "exp_avg/", kSecondMoments[] = "exp_avg_sq/";

}  // namespace

std::string WeightState(absl::string_view parameter) { return absl::StrCat(kWeights, parameter); }
std::string CopyState(absl::string_view parameter) { return absl::StrCat(kCopies, parameter); }
std::string GradientState(absl::string_view parameter) { return absl::StrCat(kGradients, parameter); }
std::string FirstMomentState(absl::string_view parameter) { return absl::StrCat(kFirstMoments, parameter); }
std::string SecondMomentState(absl::string_view parameter) { return absl::StrCat(kSecondMoments, parameter); }

std::string ParameterOf(const State& state) { return state.name.substr(state.name.find('/') + 1); }

std::vector<absl::string_view> StateNamePrefixes(StateKind kind) {
  switch (kind) {
    case StateKind::kWeight:
      return {kWeights};
    case StateKind::kCopy:
      return {kCopies};
    case StateKind::kOptimizer:
      return {kFirstMoments, kSecondMoments};
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
