#include "worker/rank/tuning/product_choice.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <utility>

#include "absl/base/casts.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "graph/ir/status_macros.h"
#include "worker/rank/collectives/agreement.h"

namespace tacc::worker {
namespace {

using nlohmann::json;

// What most ranks have alike: [shape, [[algorithm, failed], ...]].
std::string TextOf(const std::vector<ProductChoice>& mine) {
  json list = json::array();
  for (const ProductChoice& choice : mine) {
    json timings = json::array();
    for (const ProductTiming& timing : choice.timings) timings.push_back({timing.algorithm, timing.failed});
    list.push_back({choice.shape, std::move(timings)});
  }
  return list.dump(-1, ' ', false, json::error_handler_t::replace);
}

std::vector<ProductChoice> ProductsOf(const std::string& text) {
  std::vector<ProductChoice> products;
  for (const json& product : json::parse(text)) {
    products.push_back({product[0], "", {}});
    for (const json& timing : product[1]) products.back().timings.push_back({timing[0], 0, timing[1]});
  }
  return products;
}

const ProductTiming* TimingOf(const ProductChoice& choice, const std::string& algorithm) {
  const auto found = std::find_if(choice.timings.begin(), choice.timings.end(),
                                  [&](const ProductTiming& timing) { return timing.algorithm == algorithm; });
  return found == choice.timings.end() ? nullptr : &*found;
}

double SecondsOf(const ProductChoice& choice, const std::string& algorithm) {
  const ProductTiming* const timing = TimingOf(choice, algorithm);
  return timing == nullptr ? 0 : timing->seconds;
}

// A shape's algorithms over the ranks that have it.
class ProductOfRanks {
 public:
  // What ranks say alike.
  void Add(const ProductChoice& product, const SharedText& ranks) {
    num_ranks_ += ranks.num_ranks;
    for (const ProductTiming& timing : product.timings) {
      const auto found = std::find_if(merged_.begin(), merged_.end(),
                                      [&](const Merged& m) { return m.timing.algorithm == timing.algorithm; });
      Merged& merged = found == merged_.end() ? merged_.emplace_back(Merged{{timing.algorithm}}) : *found;
      merged.num_ranks += ranks.num_ranks;
      if (merged.timing.failed.empty() && !timing.failed.empty()) {
        merged.timing.failed = timing.failed;
        merged.timing.rank = ranks.first_rank;
      }
    }
  }

  // Each algorithm's numbers, as the rank with the product `mine` has them. Their bits lie in the order of the numbers.
  void AppendNumbers(const ProductChoice& mine, std::vector<uint64_t>* numbers) const {
    for (const Merged& merged : merged_) {
      const ProductTiming* const timing = TimingOf(mine, merged.timing.algorithm);
      numbers->push_back(absl::bit_cast<uint64_t>(timing == nullptr ? 0.0 : timing->seconds));
      numbers->push_back(absl::bit_cast<uint64_t>(timing == nullptr ? 0.0 : timing->distance));
    }
  }
  // The slowest rank's. Returns what is behind them.
  const uint64_t* TakeNumbers(const uint64_t* numbers) {
    for (Merged& merged : merged_) {
      merged.timing.seconds = absl::bit_cast<double>(*numbers++);
      merged.timing.distance = absl::bit_cast<double>(*numbers++);
    }
    return numbers;
  }

  ProductChoice Choose(const std::string& shape, const ProductRule& rule) const {
    ProductChoice choice{shape, kLibtorchProduct, {}};
    std::vector<ProductTiming> works;
    for (const Merged& merged : merged_) {
      choice.timings.push_back(merged.timing);
      if (merged.num_ranks == num_ranks_ && merged.timing.failed.empty()) works.push_back(merged.timing);
    }
    const auto is_librarys = [](const ProductTiming& timing) { return timing.algorithm != kLibtorchProduct; };
    const auto before = rule.earlier.find(shape);
    auto chosen = std::find_if(works.begin(), works.end(), [&](const ProductTiming& timing) {
      return before != rule.earlier.end() && timing.algorithm == before->second;
    });
    if (chosen == works.end()) {
      chosen = rule.order == ProductOrder::kFixed
                   ? std::find_if(works.begin(), works.end(), is_librarys)
                   : std::min_element(works.begin(), works.end(), [](const ProductTiming& a, const ProductTiming& b) {
                       return a.seconds < b.seconds;
                     });
    }
    if (chosen != works.end()) choice.algorithm = chosen->algorithm;
    choice.is_makeshift = works.size() < merged_.size() && std::none_of(works.begin(), works.end(), is_librarys);
    return choice;
  }

 private:
  struct Merged {
    ProductTiming timing;
    int num_ranks = 0;
  };
  int num_ranks_ = 0;
  std::vector<Merged> merged_;
};

std::string AndMore(int num) { return num == 0 ? "" : absl::StrCat(" (and ", num, " more)"); }

}  // namespace

absl::StatusOr<std::vector<ProductChoice>> AgreeOnProducts(Collectives& collectives,
                                                           const std::vector<ProductChoice>& mine,
                                                           const ProductRule& rule) {
  TACC_ASSIGN_OR_RETURN(const std::vector<SharedText> lists, GatherSharedTexts(collectives, TextOf(mine)));
  std::map<std::string, ProductOfRanks> products;
  for (const SharedText& list : lists) {
    for (const ProductChoice& product : ProductsOf(list.text)) products[product.shape].Add(product, list);
  }
  std::map<std::string, const ProductChoice*> my_products;
  for (const ProductChoice& product : mine) my_products[product.shape] = &product;
  std::vector<uint64_t> numbers;
  for (const auto& [shape, product] : products) {
    const auto found = my_products.find(shape);
    product.AppendNumbers(found == my_products.end() ? ProductChoice() : *found->second, &numbers);
  }
  TACC_ASSIGN_OR_RETURN(numbers, GatherLargest(collectives, std::move(numbers)));
  std::vector<ProductChoice> agreed;
  const uint64_t* rest = numbers.data();
  for (auto& [shape, product] : products) {
    rest = product.TakeNumbers(rest);
    agreed.push_back(product.Choose(shape, rule));
  }
  return agreed;
}

std::vector<std::string> ChangedProducts(const std::vector<ProductChoice>& choices, const EarlierProducts& earlier) {
  std::vector<std::string> changed;
  for (const ProductChoice& choice : choices) {
    const auto before = earlier.find(choice.shape);
    if (before != earlier.end() && before->second != choice.algorithm) changed.push_back(choice.shape);
  }
  return changed;
}

std::vector<std::string> ProductWarnings(const std::vector<ProductChoice>& choices, const EarlierProducts& earlier) {
  struct Failure {
    std::string first;  // In words.
    double distance = 0;
    int num_more = -1;
  };
  std::map<std::string, Failure> failures;
  for (const ProductChoice& choice : choices) {
    for (const ProductTiming& timing : choice.timings) {
      if (timing.failed.empty()) continue;
      Failure& failure = failures[timing.failed];
      failure.distance = std::max(failure.distance, timing.distance);
      if (++failure.num_more > 0) continue;
      failure.first = absl::StrCat("product ", choice.shape, " is computed by ", choice.algorithm, "; ",
                                   timing.algorithm, " failed: rank ", timing.rank, ": ", timing.failed);
    }
  }
  std::vector<std::string> warnings;
  for (const auto& [why, failure] : failures) {
    warnings.push_back(absl::StrCat(failure.first,
                                    failure.distance > 0 ? absl::StrFormat(", up to %.3g", failure.distance) : "",
                                    AndMore(failure.num_more)));
  }
  const std::vector<std::string> changed = ChangedProducts(choices, earlier);
  if (changed.empty()) return warnings;
  const auto first = std::find_if(choices.begin(), choices.end(),
                                  [&](const ProductChoice& choice) { return choice.shape == changed[0]; });
  warnings.push_back(
      absl::StrCat("product ", first->shape, " is computed by ", first->algorithm, ", in the attempt before by ",
                   earlier.at(first->shape), ", which does not work on all ranks now",
                   AndMore(static_cast<int>(changed.size()) - 1), ": losses may differ in the last bits from here on"));
  return warnings;
}

json ProductsJson(const std::vector<ProductChoice>& choices) {
  json list = json::array();
  for (const ProductChoice& choice : choices) {
    json& product = list.emplace_back(json{{"shape", choice.shape}, {"algorithm", choice.algorithm}});
    if (const double seconds = SecondsOf(choice, choice.algorithm); seconds > 0) product["seconds"] = seconds;
    if (const double seconds = SecondsOf(choice, kLibtorchProduct); seconds > 0) product["libtorch_seconds"] = seconds;
    if (choice.is_makeshift) product["makeshift"] = true;
  }
  return list;
}

std::string InWords(const ProductChoice& choice) {
  std::string text = absl::StrCat("product ", choice.shape, ": ", choice.algorithm);
  const double libtorch = SecondsOf(choice, kLibtorchProduct);
  if (libtorch == 0) return text;
  if (choice.algorithm != kLibtorchProduct)
    absl::StrAppendFormat(&text, " %.3f ms, %s", SecondsOf(choice, choice.algorithm) * 1e3, kLibtorchProduct);
  absl::StrAppendFormat(&text, " %.3f ms, of %d measured", libtorch * 1e3, choice.timings.size());
  return text;
}

}  // namespace tacc::worker
