// Exports of trainings that train a part of a model: adapters, apart and merged, and models with frozen weights; and of
// graphs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <map>

#include "absl/strings/str_cat.h"
#include "machine/testing/test_directory.h"
#include "nlohmann/json.hpp"
#include "worker/checkpoint/export.h"
#include "worker/checkpoint/tensors/element.h"
#include "worker/checkpoint/tensors/model_fingerprint.h"
#include "worker/checkpoint/tensors/model_weights.h"
#include "worker/checkpoint/writer.h"

namespace tacc::worker {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Of a base [6, 2] whose q and k are rows of one tensor, and of which the files leave out "base.": A is 10 and 20, B
// counts up.
constexpr char kModule[] = "base.layers.0.qk";
const std::vector<float> kBase = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, kNorm = {0.5f, 0.25f}, kTrainedNorm = {7, 8};
const std::vector<float> kA = {10, 20}, kB = {1, 2, 3, 4, 5, 6};

struct Stored {
  std::string name;
  std::vector<int64_t> shape;
  std::vector<float> values;
};

class ExportAdapterTest : public ::testing::Test {
 protected:
  ExportAdapterTest() : model_(directory_.File("model")), out_(directory_.File("out")) {
    EXPECT_TRUE(MakeDirectory(model_).ok());
    TestDirectory::Write(model_ + "/config.json", R"({"dtype": "bfloat16"})");
    TestDirectory::Write(model_ + "/tokenizer.json", "tokenizer");
    WriteModel(kBase);
  }

  void WriteModel(const std::vector<float>& base) {
    auto writer = SafetensorsWriter::Create(model_ + "/model.safetensors",
                                            {{"layers.0.qk.weight", "BF16", {6, 2}}, {"norm.weight", "BF16", {2}}}, {});
    ASSERT_TRUE(writer.ok()) << writer.status();
    for (const std::vector<float>* values : {&base, &kNorm}) {
      std::vector<char> bytes(2 * values->size());
      ASSERT_TRUE(ConvertFromFloat("BF16", values->data(), static_cast<int64_t>(values->size()), bytes.data()).ok());
      ASSERT_TRUE((*writer)->Append(bytes.data(), static_cast<int64_t>(bytes.size())).ok());
    }
    ASSERT_TRUE((*writer)->Finish().ok());
  }

  // A checkpoint of these weights, beside a moment; returns its path.
  std::string WriteCheckpoint(const std::vector<Stored>& stored, json identity) {
    const std::string run = directory_.File("run");
    EXPECT_TRUE(MakeDirectory(run).ok());
    const std::vector<float> moment = {1};
    std::vector<ShardTensor> tensors = {{"exp_avg/x", "F32", {1}, {1}, {{0}, {1}}, moment.data()}};
    for (const Stored& s : stored) {
      tensors.push_back(
          {absl::StrCat("weights/", s.name), "F32", s.shape, s.shape, WholeTensor(s.shape), s.values.data()});
    }
    EXPECT_TRUE(WriteShard(run, {1, 1}, 0, tensors, nullptr).ok());
    Manifest manifest;
    manifest.step = manifest.attempt = 1;
    if (!identity.contains("model_path")) {
      identity["config_json"] = R"({"dtype": "bfloat16"})";
      identity["model_path"] = model_;
    }
    identity["weights"] = absl::StrCat("pretrained, ", *ModelFingerprint(model_));
    manifest.identity = identity.dump();
    EXPECT_TRUE(CommitCheckpoint(run, manifest, 1, nullptr).ok());
    return run + "/step-00000001.a1";
  }

  std::string AdapterCheckpoint() {
    const std::string a = absl::StrCat(kModule, ".lora_A.weight"), b = absl::StrCat(kModule, ".lora_B.weight");
    return WriteCheckpoint({{a, {1, 2}, kA},
                            {b + "[0:4]", {4, 1}, {kB.begin(), kB.begin() + 4}},
                            {b + "[4:6]", {2, 1}, {kB.begin() + 4, kB.end()}},
                            {"norm.weight", {2}, kTrainedNorm}},
                           {{"adapter_config", R"({"peft_type": "LORA", "r": 1, "lora_alpha": 2})"},
                            {"frozen", {"layers.0.qk.weight[0:4]", "layers.0.qk.weight[4:6]"}}});
  }

  std::vector<float> ReadExported(const std::string& name, const std::vector<int64_t>& shape) {
    const auto model = ModelWeights::Open(out_);
    EXPECT_TRUE(model.ok()) << model.status();
    std::vector<float> values(*NumElements(shape));
    EXPECT_TRUE((*model)->ReadFloat(name, shape, WholeTensor(shape), values.data()).ok());
    return values;
  }

  TestDirectory directory_;
  std::string model_, out_;
};

TEST_F(ExportAdapterTest, WritesPeftsFolder) {
  const auto result = ExportCheckpoint({.checkpoint = AdapterCheckpoint(), .out_dir = out_});
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->dtype, "F32");
  EXPECT_EQ(TestDirectory::Names(out_), (std::vector<std::string>{"adapter_config.json", "adapter_model.safetensors",
                                                                  "tacc_export.json", "tokenizer.json"}));
  const json config = json::parse(TestDirectory::Read(out_ + "/adapter_config.json"));
  EXPECT_EQ(config, json({{"peft_type", "LORA"}, {"r", 1}, {"lora_alpha", 2}, {"base_model_name_or_path", model_}}));
  const auto file = SafetensorsFile::Open(out_ + "/adapter_model.safetensors");
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ((*file)->header().metadata.at("base_model"), *ModelFingerprint(model_));
  std::map<std::string, std::vector<int64_t>> shapes;
  for (const auto& [name, entry] : (*file)->header().tensors) shapes[name] = entry.shape;
  EXPECT_EQ(shapes,
            (std::map<std::string, std::vector<int64_t>>{{"base_model.model.base.layers.0.qk.lora_A.weight", {1, 2}},
                                                         {"base_model.model.base.layers.0.qk.lora_B.weight", {6, 1}},
                                                         {"base_model.model.norm.weight", {2}}}));
  const auto adapter = ModelWeights::OpenAdapter(out_);
  ASSERT_TRUE(adapter.ok()) << adapter.status();
  std::vector<float> b(6);
  ASSERT_TRUE(
      (*adapter)->ReadFloat(absl::StrCat(kModule, ".lora_B.weight"), {6, 1}, WholeTensor({6, 1}), b.data()).ok());
  EXPECT_EQ(b, kB);
  // It goes with its base alone.
  EXPECT_TRUE(AdapterFingerprint(out_, *ModelFingerprint(model_)).ok());
  EXPECT_THAT(std::string(AdapterFingerprint(out_, "2 tensors").status().message()),
              HasSubstr("the adapter was trained on a base model of"));
}

TEST_F(ExportAdapterTest, MergesIntoTheBase) {
  const std::string checkpoint = AdapterCheckpoint();
  const auto result =
      ExportCheckpoint({.checkpoint = checkpoint, .out_dir = out_, .adapters = ExportRequest::Adapters::kMerged});
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(TestDirectory::Names(out_),
            (std::vector<std::string>{"config.json", "model.safetensors", "tacc_export.json", "tokenizer.json"}));
  // W + 2 B A.
  EXPECT_THAT(ReadExported("layers.0.qk.weight", {6, 2}),
              ElementsAre(21, 42, 43, 84, 65, 126, 87, 168, 109, 210, 131, 252));
  EXPECT_EQ(ReadExported("norm.weight", {2}), kTrainedNorm);
}

// As GPT-2's, where its head is its own: fan_in_fan_out is said once, of both.
TEST_F(ExportAdapterTest, MergesAHeadThatLiesOtherwiseThanTheLayers) {
  const std::string checkpoint = WriteCheckpoint(
      {{absl::StrCat(kModule, ".lora_A.weight"), {1, 2}, kA}, {absl::StrCat(kModule, ".lora_B.weight"), {6, 1}, kB}},
      {{"adapter_config", R"({"r": 1, "lora_alpha": 2, "fan_in_fan_out": true})"},
       {"frozen", {"layers.0.qk.weight", "norm.weight"}}});
  const auto result =
      ExportCheckpoint({.checkpoint = checkpoint, .out_dir = out_, .adapters = ExportRequest::Adapters::kMerged});
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_THAT(ReadExported("layers.0.qk.weight", {6, 2}),
              ElementsAre(21, 42, 43, 84, 65, 126, 87, 168, 109, 210, 131, 252));
}

TEST_F(ExportAdapterTest, AnotherBaseIsNamed) {
  const std::string checkpoint = AdapterCheckpoint();
  const ExportRequest merged = {
      .checkpoint = checkpoint, .out_dir = out_, .adapters = ExportRequest::Adapters::kMerged};
  std::vector<float> other = kBase;
  other[3] = 5;
  WriteModel(other);
  EXPECT_THAT(std::string(ExportCheckpoint(merged).status().message()),
              HasSubstr(absl::StrCat(model_, ": its weights are not those that ", checkpoint, " was trained beside")));
  EXPECT_FALSE(std::filesystem::exists(out_));
  std::filesystem::rename(model_, directory_.File("moved"));
  EXPECT_THAT(std::string(ExportCheckpoint(merged).status().message()),
              HasSubstr(absl::StrCat(model_, ", which is not there: say where it is (--model)")));
  EXPECT_TRUE(ExportCheckpoint({.checkpoint = checkpoint, .out_dir = out_}).ok());  // apart, it needs none
}

TEST_F(ExportAdapterTest, WhatIsFrozenHasTheBitsOfTheModel) {
  const std::string checkpoint =
      WriteCheckpoint({{"norm.weight", {2}, kTrainedNorm}}, {{"frozen", {"layers.0.qk.weight"}}});
  const auto result = ExportCheckpoint({.checkpoint = checkpoint, .out_dir = out_});
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->num_tensors, 2);
  EXPECT_EQ(ReadExported("layers.0.qk.weight", {6, 2}), kBase);
  EXPECT_EQ(ReadExported("norm.weight", {2}), kTrainedNorm);
  EXPECT_EQ(ExportCheckpoint({.checkpoint = checkpoint, .out_dir = out_, .adapters = ExportRequest::Adapters::kMerged})
                .status()
                .message(),
            absl::StrCat(checkpoint, " holds no adapters that could be merged: leave out --merge"));
}

TEST_F(ExportAdapterTest, AnAdapterThatFitsNoWeightIsNamed) {
  const std::string checkpoint = WriteCheckpoint(
      {{absl::StrCat(kModule, ".lora_A.weight"), {1, 3}, {1, 2, 3}},
       {absl::StrCat(kModule, ".lora_B.weight"), {6, 1}, kB}},
      {{"adapter_config", R"({"r": 1, "lora_alpha": 2})"}, {"frozen", {"layers.0.qk.weight", "norm.weight"}}});
  EXPECT_EQ(ExportCheckpoint({.checkpoint = checkpoint, .out_dir = out_, .adapters = ExportRequest::Adapters::kMerged})
                .status()
                .message(),
            "the adapter of base.layers.0.qk, with A [1,3], fits no weight of the base model: it is [6,2]");
}

TEST_F(ExportAdapterTest, AGraphComesAlong) {
  const std::string graphs = directory_.File("graphs");
  ASSERT_TRUE(MakeDirectory(graphs).ok());
  for (const char* name : {"model.graph", "export.json", "notes.txt"}) TestDirectory::Write(graphs + "/" + name, name);
  const std::string checkpoint =
      WriteCheckpoint({{"norm.weight", {2}, kTrainedNorm}}, {{"model_path", graphs + "/model.graph"}});
  const auto result = ExportCheckpoint({checkpoint, "", out_});
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->dtype, "F32");
  EXPECT_THAT(TestDirectory::Names(out_),
              ElementsAre("export.json", "model.graph", "model.safetensors", "tacc_export.json"));
  EXPECT_EQ(TestDirectory::Read(out_ + "/model.graph"), "model.graph");
  // A model of transformers has its config.json there.
  TestDirectory::Write(graphs + "/config.json", R"({"dtype": "bfloat16"})");
  const auto again = ExportCheckpoint({checkpoint, "", out_});
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->dtype, "BF16");
  EXPECT_EQ(TestDirectory::Read(out_ + "/config.json"), R"({"dtype": "bfloat16"})");
}

}  // namespace
}  // namespace tacc::worker
