// The ranks' common choice of how matrices are multiplied.
#ifndef TACC_WORKER_RANK_TUNING_PRODUCT_CHOICE_H_
#define TACC_WORKER_RANK_TUNING_PRODUCT_CHOICE_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"
#include "worker/rank/collectives/collectives.h"
#include "worker/rank/device/measured_products.h"

namespace tacc::worker {

// Which of the algorithms that work is taken.
enum class ProductOrder {
  kFastest,  // of the slowest rank
  kFixed,    // the library's first: times decide nothing
};

// How to choose; the same on every rank.
struct ProductRule {
  ProductOrder order = ProductOrder::kFastest;
  EarlierProducts earlier;
};

// By which algorithm each shape that any rank has is multiplied, by shape; the same on every rank, and all call it.
// `mine`: as this rank's device measured it (worker/rank/device/device.h). Of the ranks that have a shape the slowest's
// times count, and all must have the algorithm: so GPUs of two kinds, which have few in common, may leave it to
// LibTorch. An earlier choice is taken again where it works on all of them. A rank sends and receives each different
// list of algorithms among the ranks (one a stage) twice, four words for each algorithm and two for each rank: of 50
// shapes a stage some 50 kB for each stage, and 16 kB at 1,024 ranks. Unavailable when a rank does not answer.
absl::StatusOr<std::vector<ProductChoice>> AgreeOnProducts(Collectives& collectives,
                                                           const std::vector<ProductChoice>& mine,
                                                           const ProductRule& rule);

// The shapes of which an earlier choice does not work on all ranks, so that another was taken. Ranks on which it does
// have measured no others (Device::MeasureProducts does); then they choose anew.
std::vector<std::string> ChangedProducts(const std::vector<ProductChoice>& choices, const EarlierProducts& earlier);

// What people must know of that: a line for each reason for which algorithms that should have worked did not, and one
// where earlier choices were not kept.
std::vector<std::string> ProductWarnings(const std::vector<ProductChoice>& choices, const EarlierProducts& earlier);

// `products` of the event `ready` (docs/contracts.md).
nlohmann::json ProductsJson(const std::vector<ProductChoice>& choices);

// For logs, a line: "product bf16 [...] x [...]: cublaslt-...:42.14 1.100 ms, libtorch 1.200 ms, of 9 measured".
std::string InWords(const ProductChoice& choice);

}  // namespace tacc::worker

#endif  // TACC_WORKER_RANK_TUNING_PRODUCT_CHOICE_H_
