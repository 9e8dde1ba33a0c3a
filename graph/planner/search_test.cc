#include "graph/planner/search.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"

namespace tacc::graph {
namespace {

using ::testing::HasSubstr;

ModelWork Decoder(int64_t layers) {
  UnitWork layer;
  layer.name = "layer";
  layer.count = layers;
  layer.is_layer = true;
  KernelWork product;
  product.dtype = DType::kBF16;
  product.region = Split::kTensor;
  product.flops = 2e12;
  layer.forward.kernels = {product};
  layer.backward.kernels = {product, product};
  for (PhaseWork* phase : {&layer.forward, &layer.backward}) phase->gathers = phase->scatters = {{3e7}, {3e7}};
  layer.parameters.tensor = 4e8;
  layer.input_bytes = 3e7;
  layer.saved_home_bytes = 1e8;
  layer.saved_tensor_bytes = 3e8;
  ModelWork model;
  model.units = {layer};
  model.num_layers = layers;
  model.num_heads = 24;
  model.seq_len = 4096;
  return model;
}

SearchRequest On(int64_t gpus) {
  SearchRequest r;
  r.cluster = *MakeCluster(*FindMachine("h100"), gpus);
  r.global_batch = 512;
  r.available_bytes = r.cluster.machine.memory_bytes;
  return r;
}

TEST(Search, FindsAFittingLayoutAndSaysWhyOthersLost) {
  const ModelWork model = Decoder(32);  // 12.8 B parameters: 205 GB of states
  const SearchRequest request = On(64);
  const auto result = Search(model, request);
  ASSERT_TRUE(result.ok()) << result.status();
  ASSERT_FALSE(result->best.empty());
  EXPECT_LE(result->best.size(), request.num_best);
  for (size_t i = 0; i < result->best.size(); ++i) {
    const Scored& s = result->best[i];
    EXPECT_EQ(s.layout.num_ranks(), 64);
    EXPECT_EQ(s.layout.global_batch(), 512);
    EXPECT_LE(s.memory.total(), request.available_bytes);
    EXPECT_GE(s.step.seconds, result->best[i == 0 ? 0 : i - 1].step.seconds);
  }
  EXPECT_EQ(static_cast<int64_t>(result->losers.size()), result->num_meshes - 1);
  for (const Loser& loser : result->losers) EXPECT_FALSE(loser.why.empty()) << loser.scored.layout.ToString();
  EXPECT_THAT(result->losers.front().why, HasSubstr("x the lowest estimate"));
  EXPECT_THAT(result->losers.back().why, HasSubstr("does not fit"));
}

// Each stage of a pipeline has many micro-batches, whose weights and gradients nothing hides across its calls.
TEST(Search, ShardsAsMuchAsMemoryAsksFor) {
  const ModelWork model = Decoder(32);
  SearchRequest request = On(64);
  request.sizes[Axis::kPp] = 4;
  request.sizes[Axis::kFsdp] = 16;
  request.micro_batch = 1;
  request.schedule = PipelineSchedule::k1F1B;
  request.recompute = true;
  const auto best = [&] {
    const auto result = Search(model, request);
    EXPECT_TRUE(result.ok()) << result.status();
    return result->best.empty() ? *result->smallest : result->best[0];
  };
  const auto fill = [&](const Scored& scored) { request.available_bytes = scored.memory.total() - 1; };
  const Scored whole = best();
  EXPECT_EQ(whole.layout.zero_stage, 1) << whole.layout.ToString();
  fill(whole);
  const Scored once = best();
  EXPECT_EQ(once.layout.zero_stage, 3) << once.layout.ToString();
  EXPECT_FALSE(once.layout.reduce_each_micro_batch);
  EXPECT_GT(once.step.seconds, whole.step.seconds);
  fill(once);
  request.zero_stage = 3;  // 2 has no gradients that are whole either, but weights.
  const Scored each = best();
  EXPECT_TRUE(each.layout.reduce_each_micro_batch) << each.layout.ToString();
  EXPECT_GT(each.step.seconds, once.step.seconds);
  EXPECT_LT(each.memory.total(), once.memory.total());
}

// What the job says is not searched; of one micro-batch, and where fsdp splits nothing, there is one way only.
TEST(Search, ShardsAsTheJobSays) {
  SearchRequest request = On(64);
  request.sizes[Axis::kPp] = 4;
  request.zero_stage = 2;
  const auto second = Search(Decoder(32), request);
  ASSERT_TRUE(second.ok()) << second.status();
  for (const Scored& scored : second->best) EXPECT_EQ(scored.layout.zero_stage, 2) << scored.layout.ToString();
  request.zero_stage = 3;
  request.reduce_each_micro_batch = true;
  const auto third = Search(Decoder(32), request);
  ASSERT_TRUE(third.ok()) << third.status();
  for (const Scored& scored : third->best) EXPECT_TRUE(scored.layout.reduce_each_micro_batch);
  SearchRequest one = On(64);
  one.sizes[Axis::kFsdp] = 64;
  one.micro_batch = 8;
  one.num_best = one.num_of_a_mesh = 100;
  const auto once = Search(Decoder(32), one);
  ASSERT_TRUE(once.ok()) << once.status();
  for (const Scored& scored : once->best) EXPECT_TRUE(scored.layout.reduce_each_micro_batch);
}

// Pruning must not lose anything: the same best as when each mesh is searched alone.
TEST(Search, PruningKeepsTheBest) {
  const ModelWork model = Decoder(32);
  const auto all = Search(model, On(16));
  ASSERT_TRUE(all.ok()) << all.status();
  double best = 1e30;
  for (int64_t pp : {1, 2, 4, 8, 16}) {
    for (int64_t tp : {1, 2, 4, 8}) {
      SearchRequest request = On(16);
      request.sizes[Axis::kPp] = pp;
      request.sizes[Axis::kTp] = tp;
      const auto part = Search(model, request);
      if (part.ok() && !part->best.empty()) best = std::min(best, part->best[0].step.seconds);
    }
  }
  EXPECT_EQ(all->best[0].step.seconds, best);
}

// What to take instead of a size takes searches of its own: none where nobody asked for that size. Here cp = 3 does not
// cut the sequence.
TEST(Search, LooksAtEachLayoutOnce) {
  SearchRequest request = On(24);
  int64_t num_looks = 0;
  request.memory_factor = [&num_looks](const Layout&) {
    ++num_looks;
    return 1.0;
  };
  const auto result = Search(Decoder(32), request);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_GT(num_looks, 0);
  EXPECT_LE(num_looks, result->num_layouts + result->num_pruned);
}

// Over a grid of requests: each value that a refusal names is taken in place of the one that was refused.
TEST(Search, TakesWhatItSuggests) {
  const auto field_of = [](SearchRequest& r, absl::string_view field) -> std::optional<int64_t>* {
    for (Axis axis : {Axis::kPp, Axis::kFsdp, Axis::kCp, Axis::kTp}) {
      if (field == absl::StrCat("dist.", Name(axis), ".size")) return &r.sizes[axis];
    }
    if (field == "train.per_device_train_batch_size") return &r.micro_batch;
    return field == "dist.pp.num_micro_batches" ? &r.num_micro_batches : nullptr;
  };
  int num_suggested = 0;
  for (const auto& [layers, chunks, pp, tp, cp, fsdp, batch] :
       std::vector<std::tuple<int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t>>{
           {3, 2, 4, 1, 1, 1, 16}, {3, 0, 4, 1, 1, 1, 16},  {8, 2, 8, 1, 1, 1, 16}, {8, 4, 4, 1, 1, 1, 16},
           {8, 2, 3, 1, 1, 1, 16}, {8, 2, 3, 4, 1, 1, 16},  {8, 0, 3, 4, 1, 2, 16}, {8, 0, 2, 3, 1, 2, 16},
           {8, 0, 2, 3, 1, 4, 16}, {8, 0, 1, 2, 3, 2, 16},  {8, 0, 1, 1, 1, 3, 16}, {8, 0, 2, 1, 1, 3, 7},
           {8, 0, 1, 1, 1, 8, 12}, {8, 2, 2, 1, 1, 4, 12},  {8, 2, 4, 1, 1, 2, 6},  {8, 2, 2, 1, 1, 1, 7},
           {4, 2, 4, 2, 1, 1, 8},  {5, 3, 2, 16, 1, 1, 24}, {8, 0, 1, 1, 8, 1, 7},  {2, 2, 2, 5, 1, 1, 8}}) {
    for (const int64_t micro_batch : {0, 1, 3}) {
      for (const int64_t num_micro_batches : {0, 2, 3}) {
        const ModelWork model = Decoder(layers);
        SearchRequest request = On(8);
        request.available_bytes = 0;
        request.global_batch = batch;
        for (const auto& [axis, value] : std::vector<std::pair<Axis, int64_t>>{
                 {Axis::kPp, pp}, {Axis::kTp, tp}, {Axis::kCp, cp}, {Axis::kFsdp, fsdp}})
          if (value > 1) request.sizes[axis] = value;
        if (chunks > 0) request.chunks = chunks, request.schedule = PipelineSchedule::kInterleaved;
        if (micro_batch > 0) request.micro_batch = micro_batch;
        if (num_micro_batches > 0) request.num_micro_batches = num_micro_batches;
        const auto refused = Search(model, request);
        if (refused.ok()) continue;
        const std::string message(refused.status().message());
        const size_t at = message.find("nearest legal values: ");
        if (at == std::string::npos) continue;
        const std::string field = message.substr(0, message.find(' '));
        for (absl::string_view value : absl::StrSplit(message.substr(at + 22), " and ")) {
          int64_t suggested = 0;
          ASSERT_TRUE(absl::SimpleAtoi(value, &suggested)) << message;
          SearchRequest changed = request;
          if (field == "train.global_batch_size") {
            changed.global_batch = suggested;
          } else {
            ASSERT_NE(field_of(changed, field), nullptr) << message;
            *field_of(changed, field) = suggested;
          }
          EXPECT_TRUE(Search(model, changed).ok()) << message << "\n" << Search(model, changed).status();
          ++num_suggested;
        }
      }
    }
  }
  EXPECT_GT(num_suggested, 50);
}

TEST(Search, SaysWhatIsWrong) {
  const ModelWork model = Decoder(32);
  auto message = [&](const std::function<void(SearchRequest&)>& change) {
    SearchRequest request = On(64);
    change(request);
    const auto result = Search(model, request);
    return std::string(result.status().message());
  };
  EXPECT_EQ(message([](SearchRequest& r) { r.sizes[Axis::kTp] = 5; }),
            "dist.tp.size = 5 does not divide the 64 workers; nearest legal values: 4 and 8");
  EXPECT_EQ(message([](SearchRequest& r) { r.sizes[Axis::kTp] = 16; }),
            "dist.tp.size = 16 does not divide the 24 attention heads; nearest legal values: 8");
  EXPECT_EQ(message([](SearchRequest& r) { r.sizes[Axis::kPp] = 64; }),
            "dist.pp.size = 64 is more than the 32 layers; nearest legal values: 32");
  EXPECT_EQ(message([](SearchRequest& r) { r.sizes[Axis::kEp] = 2; }),
            "dist.ep.size = 2 is given for a model without experts; nearest legal values: 1");
  EXPECT_THAT(
      message([](SearchRequest& r) { r.sizes[Axis::kDp] = 64, r.sizes[Axis::kFsdp] = 2; }),
      HasSubstr("dist.dp.size 64 x dist.fsdp.size 2 = 128 does not divide the 64 workers; the product may be 1, "));
  EXPECT_EQ(
      message([](SearchRequest& r) {
        r.sizes[Axis::kPp] = r.sizes[Axis::kDp] = r.sizes[Axis::kFsdp] = r.sizes[Axis::kEp] = r.sizes[Axis::kCp] =
            r.sizes[Axis::kTp] = 1;
      }),
      "dist.pp.size 1 x dist.dp.size 1 x dist.fsdp.size 1 x dist.ep.size 1 x dist.cp.size 1 x dist.tp.size 1 = 1, "
      "but there are 64 workers, and nothing else of this model can be split over 64; leave out one of the sizes, "
      "or make them multiply to 64");
  EXPECT_EQ(message([](SearchRequest& r) { r.global_batch = 100, r.sizes[Axis::kDp] = 64; }),
            "train.global_batch_size = 100 does not divide over 64 workers; nearest legal values: 64 and 128");
  const ModelWork small = Decoder(3);
  SearchRequest interleaved = On(8);
  interleaved.sizes[Axis::kPp] = 4;
  interleaved.schedule = PipelineSchedule::kInterleaved;
  interleaved.chunks = 2;
  EXPECT_EQ(Search(small, interleaved).status().message(),
            "dist.pp.size = 4 stages of 2 parts (interleaved) are more than the 3 layers; nearest legal values: 1");
  EXPECT_EQ(message([](SearchRequest& r) { r.sizes[Axis::kPp] = 5, r.sizes[Axis::kDp] = 64; }),
            "dist.pp.size = 5 does not divide the 64 workers; nearest legal values: 1");
  EXPECT_EQ(message([](SearchRequest& r) { r.sizes[Axis::kPp] = 5, r.sizes[Axis::kDp] = 64, r.sizes[Axis::kTp] = 2; }),
            "dist.pp.size = 5 does not divide the 64 workers; as the rest of the job is, no other value of it is legal "
            "either");
  EXPECT_THAT(message([](SearchRequest& r) {
                r.sizes[Axis::kPp] = 4, r.schedule = PipelineSchedule::kInterleaved, r.num_micro_batches = 2;
              }),
              HasSubstr("dist.pp.schedule = interleaved needs a number of micro-batches that dist.pp.size divides"));
  EXPECT_EQ(
      message([](SearchRequest& r) { r.sizes[Axis::kDp] = 64, r.global_batch = 64 * 100'000, r.micro_batch = 1; }),
      "train.per_device_train_batch_size = 1 makes 100000 micro-batches a step of the 100000 samples of a worker "
      "(global_batch_size 6400000); at most 65536; nearest legal values: 2");
  EXPECT_EQ(message([](SearchRequest& r) { r.sizes[Axis::kDp] = 64, r.global_batch = int64_t{64} * 2147483647; }),
            "train.global_batch_size = 137438953408 makes more than 65536 micro-batches a step of the 2147483647 "
            "samples of a worker, of 16 samples at most; train.per_device_train_batch_size may be more; nearest legal "
            "values: 67108864");
}

TEST(Search, PicksWhatTheModelNeeds) {
  // 102 B parameters, 1.6 TB of states: activations that are kept do not fit beside them on four nodes.
  ModelWork large_model = Decoder(256);
  large_model.num_heads = 1;
  SearchRequest request = On(32);
  const auto large = Search(large_model, request);
  ASSERT_TRUE(large.ok()) << large.status();
  ASSERT_FALSE(large->best.empty());
  EXPECT_TRUE(large->best[0].layout.recompute);

  // Experts of which no device can gather a layer's.
  ModelWork experts = Decoder(2);
  experts.num_experts = 64;
  experts.num_heads = 1;
  experts.units[0].parameters = {0, 1e8, 2.5e10};
  experts.units[0].forward.exchanges = experts.units[0].backward.exchanges = {{6e7}};
  request = On(128);
  const auto expert = Search(experts, request);
  ASSERT_TRUE(expert.ok()) << expert.status();
  ASSERT_FALSE(expert->best.empty());
  EXPECT_GT(expert->best[0].layout.sizes[Axis::kEp], 1);

  // A sequence whose activations fill more than a device.
  ModelWork lengthy = Decoder(32);
  lengthy.seq_len = 1 << 20;
  lengthy.num_heads = 1;
  UnitWork& layer = lengthy.units[0];
  for (double* bytes : {&layer.input_bytes, &layer.saved_home_bytes, &layer.saved_tensor_bytes}) *bytes *= 256;
  request = On(64);
  request.global_batch = 4;
  const auto sequence = Search(lengthy, request);
  ASSERT_TRUE(sequence.ok()) << sequence.status();
  ASSERT_FALSE(sequence->best.empty());
  EXPECT_GT(sequence->best[0].layout.sizes[Axis::kCp], 1);

  // Nothing may shard the states: only stages and tensor parallelism are left, and heads forbid that.
  ModelWork deep = Decoder(32);
  deep.num_heads = 1;
  request = On(8);
  request.sizes[Axis::kFsdp] = request.sizes[Axis::kCp] = 1;
  request.global_batch = 64;
  const auto stages = Search(deep, request);
  ASSERT_TRUE(stages.ok()) << stages.status();
  ASSERT_FALSE(stages->best.empty());
  EXPECT_GT(stages->best[0].layout.sizes[Axis::kPp], 1);
}

// A job that names where its stages begin leaves the schedule open, of those with one part a stage.
TEST(Search, NamedCutsLeaveTheSchedule) {
  SearchRequest request = On(64);
  request.sizes[Axis::kPp] = 4;
  request.cuts_between_layers = false;
  request.num_best = request.num_of_a_mesh = 100000;
  const auto result = Search(Decoder(32), request);
  ASSERT_TRUE(result.ok()) << result.status();
  std::set<PipelineSchedule> schedules;
  for (const Scored& scored : result->best) schedules.insert(scored.layout.schedule);
  EXPECT_THAT(schedules, testing::UnorderedElementsAre(PipelineSchedule::k1F1B, PipelineSchedule::kZeroBubble));
}

TEST(Search, TheModelMayForbidALayout) {
  SearchRequest request = On(8);
  request.can_lay_out = [](const Layout& l) {
    return l.sizes[Axis::kTp] == 1 && l.sizes[Axis::kCp] == 1 ? absl::OkStatus() : absl::InvalidArgumentError("no");
  };
  const auto result = Search(Decoder(8), request);
  ASSERT_TRUE(result.ok()) << result.status();
  for (const Scored& s : result->best) EXPECT_EQ(s.layout.sizes[Axis::kTp] * s.layout.sizes[Axis::kCp], 1);
  request.sizes[Axis::kTp] = 2;
  EXPECT_EQ(Search(Decoder(8), request).status().message(), "no");
}

}  // namespace
}  // namespace tacc::graph
