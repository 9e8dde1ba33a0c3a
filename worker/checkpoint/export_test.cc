#include "worker/checkpoint/export.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <random>
#include <thread>

#include "absl/strings/str_cat.h"
#include "machine/testing/test_directory.h"
#include "nlohmann/json.hpp"
#include "worker/checkpoint/export_record.h"
#include "worker/checkpoint/files/posix_file.h"
#include "worker/checkpoint/reader.h"
#include "worker/checkpoint/tensors/model_weights.h"
#include "worker/checkpoint/writer.h"

namespace tacc::worker {
namespace {

using ::testing::HasSubstr;

// Logical [3, 4, 2], stored [12, 2]; and a vector.
const std::vector<int64_t> kFused = {3, 4, 2};

std::vector<float> Random(size_t count) {
  std::mt19937 random(3);
  std::vector<float> values(count);
  for (float& value : values) value = std::normal_distribution<float>()(random);
  return values;
}

// Writes step 1 from the given weights (cut over two ranks) and returns its path.
std::string WriteCheckpoint(const std::string& directory, const std::vector<float>& fused,
                            const std::vector<float>& norm, int64_t attempt = 1, const std::string& identity = "{}") {
  const std::vector<float> moment(24, 0.5f);
  std::vector<float> parts[2] = {std::vector<float>(12), std::vector<float>(12)};
  for (int rank = 0; rank < 2; ++rank) {
    const Rectangle half = {{0, rank * 2, 0}, {3, 2, 2}};
    CopyIntersection(reinterpret_cast<const char*>(fused.data()), WholeTensor(kFused),
                     reinterpret_cast<char*>(parts[rank].data()), half, 4);
    std::vector<ShardTensor> tensors = {{"weights/layers.0.fused", "F32", kFused, {12, 2}, half, parts[rank].data()},
                                        {"exp_avg/layers.0.fused", "F32", kFused, {12, 2}, half, moment.data()}};
    if (rank == 0) tensors.push_back({"weights/a_norm", "F32", {5}, {5}, {{0}, {5}}, norm.data()});
    EXPECT_TRUE(WriteShard(directory, {1, attempt}, rank, tensors, nullptr).ok());
  }
  Manifest manifest;
  manifest.step = 1;
  manifest.attempt = attempt;
  manifest.identity = identity;
  const auto committed = CommitCheckpoint(directory, manifest, 2, nullptr);
  EXPECT_TRUE(committed.ok()) << committed.status();
  return directory + "/" + committed->name;
}

absl::Status CheckExportOf(const std::string& out, const std::string& checkpoint) {
  const auto opened = Checkpoint::Open(checkpoint);
  EXPECT_TRUE(opened.ok()) << opened.status();
  return CheckExport(out, (*opened)->manifest());
}

class ExportTest : public ::testing::Test {
 protected:
  ExportTest() : model_(directory_.File("model")), run_(directory_.File("run")) {
    for (const std::string& path : {model_, run_}) EXPECT_TRUE(MakeDirectory(path).ok());
    TestDirectory::Write(model_ + "/config.json", "{ \"torch_dtype\" : \"bfloat16\",\n \"x\": 1.0 }");
    TestDirectory::Write(model_ + "/tokenizer.json", "tokenizer");
    TestDirectory::Write(model_ + "/generation_config.json", "{}");
    TestDirectory::Write(model_ + "/modeling_x.py", "pass");
    TestDirectory::Write(model_ + "/pytorch_model.bin", "pickle");
    checkpoint_ = WriteCheckpoint(run_, Random(24), Random(5));
  }

  TestDirectory directory_;
  std::string model_;
  std::string run_;
  std::string checkpoint_;
};

TEST_F(ExportTest, WritesAPlainDirectory) {
  const auto result = ExportCheckpoint({checkpoint_, model_, directory_.File("deep/out/")});
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->dtype, "BF16");
  EXPECT_EQ(result->num_tensors, 2);
  EXPECT_EQ(result->num_bytes, 58);
  const std::string out = directory_.File("deep/out");
  EXPECT_EQ(TestDirectory::Names(out),
            (std::vector<std::string>{"config.json", "generation_config.json", "model.safetensors", "modeling_x.py",
                                      "tacc_export.json", "tokenizer.json"}));
  EXPECT_EQ(TestDirectory::Names(directory_.File("deep")), std::vector<std::string>{"out"});
  EXPECT_EQ(TestDirectory::Read(out + "/config.json"), TestDirectory::Read(model_ + "/config.json"));
  const auto file = SafetensorsFile::Open(out + "/model.safetensors");
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ((*file)->header().metadata.at("format"), "pt");
  EXPECT_EQ((*file)->header().tensors.at("layers.0.fused").shape, (std::vector<int64_t>{12, 2}));
  EXPECT_EQ((*file)->header().tensors.at("layers.0.fused").dtype, "BF16");
}

TEST_F(ExportTest, KeepsFp32BitsAndSplitsLargeFilesWithAnIndex) {
  TestDirectory::Write(model_ + "/config.json", "{}");
  const std::string out = directory_.File("out");
  ASSERT_TRUE(ExportCheckpoint({checkpoint_, model_, out, "", 0, /*max_file_bytes=*/50}).ok());
  EXPECT_EQ(TestDirectory::Read(out + "/model.safetensors.index.json"),
            "{\n  \"metadata\": {\n    \"total_size\": 116\n  },\n  \"weight_map\": {\n"
            "    \"a_norm\": \"model-00001-of-00002.safetensors\",\n"
            "    \"layers.0.fused\": \"model-00002-of-00002.safetensors\"\n  }\n}\n");
  const auto model = ModelWeights::Open(out);
  ASSERT_TRUE(model.ok()) << model.status();
  std::vector<float> fused(24);
  ASSERT_TRUE((*model)->ReadFloat("layers.0.fused", kFused, WholeTensor(kFused), fused.data()).ok());
  EXPECT_EQ(fused, Random(24));
}

TEST_F(ExportTest, PutsTheRowsOfATensorTogether) {
  const std::vector<float> values = Random(24);
  auto write = [&](const std::string& run, const std::vector<std::pair<int64_t, int64_t>>& parts) {
    std::vector<ShardTensor> tensors;
    for (const auto& [begin, end] : parts) {
      tensors.push_back({"weights/qkv[" + std::to_string(begin) + ":" + std::to_string(end) + "]",
                         "F32",
                         {end - begin, 2},
                         {end - begin, 2},
                         {{0, 0}, {end - begin, 2}},
                         values.data() + 2 * begin});
    }
    EXPECT_TRUE(MakeDirectory(run).ok());
    EXPECT_TRUE(WriteShard(run, {1, 1}, 0, tensors, nullptr).ok());
    Manifest manifest;
    manifest.step = manifest.attempt = 1;
    EXPECT_TRUE(CommitCheckpoint(run, manifest, 1, nullptr).ok());
    return run + "/step-00000001.a1";
  };
  TestDirectory::Write(model_ + "/config.json", "{}");
  const std::string out = directory_.File("out");
  const auto result = ExportCheckpoint({write(directory_.File("rows"), {{0, 2}, {2, 10}, {10, 12}}), model_, out});
  ASSERT_TRUE(result.ok()) << result.status();
  const auto model = ModelWeights::Open(out);
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ(model.value()->tensors().size(), 1u);
  std::vector<float> read(24);
  ASSERT_TRUE((*model)->ReadFloat("qkv", {12, 2}, WholeTensor({12, 2}), read.data()).ok());
  EXPECT_EQ(read, values);
  const auto gap = ExportCheckpoint({write(directory_.File("gap"), {{0, 2}, {10, 12}}), model_, out});
  EXPECT_THAT(std::string(gap.status().message()), HasSubstr("rows 2 to 10 of \"weights/qkv\" are missing"));
}

// Gates and values of fused experts, as layouts keep them: entries, or their rows as one.
TEST_F(ExportTest, PutsTheRowsOfEachEntryTogether) {
  const std::vector<float> values = Random(36);
  TestDirectory::Write(model_ + "/config.json", "{}");
  for (const int64_t merged : {1, 2}) {
    TestDirectory directory;
    const std::string run = directory.File("fused"), out = directory.File("out");
    ASSERT_TRUE(MakeDirectory(run).ok());
    const auto part = [&](const char* name, int64_t rows, int64_t first) -> ShardTensor {
      const std::vector<int64_t> shape = {3, rows, 2};
      return {name, "F32", shape, shape, WholeTensor(MergedShape(shape, merged)), values.data() + first, merged};
    };
    const std::vector<ShardTensor> tensors = {part("weights/w[:,0:2]", 2, 0), part("weights/w[:,2:6]", 4, 12)};
    ASSERT_TRUE(WriteShard(run, {1, 1}, 0, tensors, nullptr).ok());
    Manifest manifest;
    manifest.step = manifest.attempt = 1;
    ASSERT_TRUE(CommitCheckpoint(run, manifest, 1, nullptr).ok());
    const auto result = ExportCheckpoint({run + "/step-00000001.a1", model_, out});
    ASSERT_TRUE(result.ok()) << result.status();
    const auto model = ModelWeights::Open(out);
    ASSERT_TRUE(model.ok()) << model.status();
    EXPECT_EQ((*model)->tensors().at("w").entry->shape, (std::vector<int64_t>{3, 6, 2}));
    std::vector<float> first(12), second(24);
    ASSERT_TRUE((*model)->ReadFloat("w[:,0:2]", {3, 2, 2}, WholeTensor({3, 2, 2}), first.data()).ok());
    ASSERT_TRUE((*model)->ReadFloat("w[:,2:6]", {3, 4, 2}, WholeTensor({3, 4, 2}), second.data()).ok());
    first.insert(first.end(), second.begin(), second.end());
    EXPECT_EQ(first, values);
  }
}

// As DeepSeek V3's e_score_correction_bias among weights in bf16.
TEST_F(ExportTest, WhatTheModelsFilesHaveInFp32StaysSo) {
  TestDirectory::Write(model_ + "/config.json", "{\"dtype\":\"bfloat16\"}");
  const std::string out = directory_.File("out");
  const auto dtype = [](const std::string& folder, const std::string& name) {
    return ModelWeights::Open(folder).value()->tensors().at(name).entry->dtype;
  };
  const std::vector<float> norm = Random(5);
  auto writer = SafetensorsWriter::Create(model_ + "/model.safetensors", {{"a_norm", "F32", {5}}}, {});
  ASSERT_TRUE(writer.ok() && (*writer)->Append(norm.data(), 20).ok() && (*writer)->Finish().ok());
  ASSERT_TRUE(ExportCheckpoint({checkpoint_, model_, out}).ok());
  EXPECT_EQ(dtype(out, "a_norm"), "F32");
  EXPECT_EQ(dtype(out, "layers.0.fused"), "BF16");
}

// Training for no step and exporting again gives the same bytes.
TEST_F(ExportTest, ExportOfAnImportOfAnExportIsByteEqual) {
  for (const char* config :
       {"{\"dtype\":\"bfloat16\"}", "{\"torch_dtype\":\"torch.float16\"}", "{\"torch_dtype\":null}"}) {
    TestDirectory::Write(model_ + "/config.json", config);
    const std::string first = directory_.File("first");
    ASSERT_TRUE(ExportCheckpoint({checkpoint_, model_, first}).ok());
    const auto model = ModelWeights::Open(first);
    ASSERT_TRUE(model.ok());
    std::vector<float> fused(24), norm(5);
    ASSERT_TRUE((*model)->ReadFloat("layers.0.fused", kFused, WholeTensor(kFused), fused.data()).ok());
    ASSERT_TRUE((*model)->ReadFloat("a_norm", {5}, WholeTensor({5}), norm.data()).ok());
    TestDirectory second_run;
    const std::string second = directory_.File("second");
    ASSERT_TRUE(ExportCheckpoint({WriteCheckpoint(second_run.path(), fused, norm), first, second}).ok());
    for (const std::string& name : TestDirectory::Names(first)) {
      if (name == kExportRecordName) continue;  // They are of two checkpoints.
      EXPECT_EQ(TestDirectory::Read(first + "/" + name), TestDirectory::Read(second + "/" + name)) << name;
    }
    EXPECT_EQ(TestDirectory::Names(first), TestDirectory::Names(second));
  }
}

// As layouts keep it: entries, or their rows as one.
TEST_F(ExportTest, AStackIsWrittenAsItsEntries) {
  const std::vector<float> values = Random(12);
  const std::vector<int64_t> shape = {3, 2, 2};
  for (const int64_t merged_dims : {1, 2, 3}) {
    TestDirectory directory;
    const std::string run = directory.File("stack"), out = directory.File("out");
    ASSERT_TRUE(MakeDirectory(run).ok());
    // Cut inside of an entry.
    const std::vector<int64_t> sliced = MergedShape(shape, merged_dims);
    for (int rank = 0; rank < 2; ++rank) {
      Rectangle part = WholeTensor(sliced);
      const int64_t cut = sliced[0] / 2, row = 12 / sliced[0];
      part.offset[0] = rank * cut;
      part.shape[0] = rank == 0 ? cut : sliced[0] - cut;
      const std::vector<ShardTensor> tensors = {
          {"weights/e.*.w", "F32", shape, shape, part, values.data() + part.offset[0] * row, merged_dims}};
      ASSERT_TRUE(WriteShard(run, {1, 1}, rank, tensors, nullptr).ok());
    }
    Manifest manifest;
    manifest.step = manifest.attempt = 1;
    ASSERT_TRUE(CommitCheckpoint(run, manifest, 2, nullptr).ok());
    const auto result = ExportCheckpoint({run + "/step-00000001.a1", "", out});
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_EQ(result->num_tensors, 3);
    const auto model = ModelWeights::Open(out);
    ASSERT_TRUE(model.ok()) << model.status();
    EXPECT_EQ((*model)->tensors().at("e.1.w").entry->shape, (std::vector<int64_t>{2, 2}));
    std::vector<float> read(12);
    ASSERT_TRUE((*model)->ReadFloat("e.*.w", shape, WholeTensor(shape), read.data()).ok());
    EXPECT_EQ(read, values);
  }
}

// Entries are those that the model has, not what somebody has written; of nothing there are none.
TEST_F(ExportTest, AStackOfOtherEntriesIsRefused) {
  const std::vector<float> values = Random(12);
  using Shape = std::vector<int64_t>;
  for (const auto& [shape, stored] :
       std::vector<std::pair<Shape, Shape>>{{{3, 2, 2}, {3, 4}},
                                            {{3, 2, 2}, {2, 3, 2}},
                                            {{3, 4}, {3, 2, 2}},
                                            {{int64_t{1} << 40, 0}, {int64_t{1} << 40, 0}}}) {
    SCOPED_TRACE(absl::StrCat(ShapeText(shape), " as ", ShapeText(stored)));
    TestDirectory directory;
    const std::string run = directory.File("stack");
    ASSERT_TRUE(MakeDirectory(run).ok());
    ASSERT_TRUE(WriteShard(run, {1, 1}, 0, {{"weights/e.*.w", "F32", shape, stored, WholeTensor(shape), values.data()}},
                           nullptr)
                    .ok());
    Manifest manifest;
    manifest.step = manifest.attempt = 1;
    ASSERT_TRUE(CommitCheckpoint(run, manifest, 1, nullptr).ok());
    const auto refused = ExportCheckpoint({run + "/step-00000001.a1", "", directory.File("out")});
    EXPECT_EQ(refused.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(refused.status().message()), HasSubstr("wanted the same, not empty"));
  }
}

TEST_F(ExportTest, ReplacesAnEarlierExportOnly) {
  const std::string out = directory_.File("out");
  ASSERT_TRUE(ExportCheckpoint({checkpoint_, model_, out}).ok());
  TestDirectory::Write(model_ + "/config.json", "{}");
  ASSERT_TRUE(ExportCheckpoint({checkpoint_, model_, out}).ok());
  EXPECT_EQ(TestDirectory::Read(out + "/config.json"), "{}");
  TestDirectory::Write(out + "/thesis.txt", "years of work");
  const auto refused = ExportCheckpoint({checkpoint_, model_, out});
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("holds \"thesis.txt\""));
  EXPECT_EQ(CheckExportFolder(model_, out), refused.status());
  EXPECT_TRUE(CheckExportFolder(model_, directory_.File("new/out")).ok());
  EXPECT_FALSE(CheckExportFolder(out, out).ok());
  EXPECT_EQ(ExportCheckpoint({checkpoint_, model_, model_}).status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(ExportCheckpoint({checkpoint_, model_, model_ + "/config.json"}).status().code(),
            absl::StatusCode::kAlreadyExists);
}

TEST_F(ExportTest, SaysWhatWasWrittenOfWhichCheckpoint) {
  const std::string out = directory_.File("out");
  EXPECT_EQ(CheckExportOf(out, checkpoint_).code(), absl::StatusCode::kNotFound);
  ASSERT_TRUE(ExportCheckpoint({checkpoint_ + "/", model_, out, "", 0, /*max_file_bytes=*/30}).ok());
  const auto record = ReadExportRecord(out);
  ASSERT_TRUE(record.ok()) << record.status();
  EXPECT_EQ(record->checkpoint, "step-00000001.a1");
  EXPECT_EQ(record->attempt, 1);
  std::vector<std::string> names = {kExportRecordName};
  for (const ManifestFile& file : record->files) {
    const auto hash = HashFile(out + "/" + file.name);
    ASSERT_TRUE(hash.ok()) << hash.status();
    EXPECT_EQ(hash->sha256, file.sha256) << file.name;
    EXPECT_EQ(hash->num_bytes, file.num_bytes) << file.name;
    names.push_back(file.name);
  }
  std::sort(names.begin(), names.end());
  EXPECT_EQ(names, TestDirectory::Names(out));
  EXPECT_TRUE(CheckExportOf(out, checkpoint_).ok());
  // The same weights of another checkpoint are another export.
  const std::string other = WriteCheckpoint(run_, Random(24), Random(5), 2);
  EXPECT_THAT(std::string(CheckExportOf(out, other).message()), HasSubstr("export of another checkpoint"));
}

TEST_F(ExportTest, ATornExportIsNotTakenForWhole) {
  const std::string out = directory_.File("out"), weights = out + "/model.safetensors";
  ASSERT_TRUE(ExportCheckpoint({checkpoint_, model_, out}).ok());
  const std::string whole = TestDirectory::Read(weights);
  TestDirectory::Write(weights, whole.substr(0, whole.size() / 2));
  EXPECT_THAT(std::string(CheckExportOf(out, checkpoint_).message()), HasSubstr("model.safetensors: has "));
  ASSERT_TRUE(RemoveTree(weights).ok());
  EXPECT_EQ(CheckExportOf(out, checkpoint_).code(), absl::StatusCode::kNotFound);
  TestDirectory::Write(weights, whole);
  TestDirectory::Write(out + "/README.md", "people's own");
  TestDirectory::Write(out + "/generation_config.json", "{\"top_k\": 5}");
  EXPECT_TRUE(CheckExportOf(out, checkpoint_).ok());
  std::string record = TestDirectory::Read(out + "/tacc_export.json");
  record[record.find("bytes") + 8] ^= 1;
  TestDirectory::Write(out + "/tacc_export.json", record);
  EXPECT_THAT(std::string(CheckExportOf(out, checkpoint_).message()), HasSubstr("tacc_export.json: its content"));
}

// Whoever ends last wins; each that succeeds has put a whole model there.
TEST_F(ExportTest, ExportsToOneFolderDoNotTearEachOther) {
  const std::string out = directory_.File("out");
  std::vector<std::thread> threads;
  std::vector<absl::Status> results(4);
  for (absl::Status& result : results) {
    threads.emplace_back([&result, &out, this] {
      for (int i = 0; i < 25 && (result.ok() || absl::IsAborted(result)); ++i) {
        result = ExportCheckpoint({checkpoint_, model_, out, "", 0, /*max_file_bytes=*/30}).status();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  // Another one's folder may be there before the first is seen.
  for (const absl::Status& result : results) EXPECT_TRUE(result.ok() || absl::IsAborted(result)) << result;
  EXPECT_TRUE(CheckExportOf(out, checkpoint_).ok()) << CheckExportOf(out, checkpoint_);
  const auto model = ModelWeights::Open(out);
  EXPECT_TRUE(model.ok()) << model.status();
  EXPECT_EQ(TestDirectory::Names(directory_.path()), (std::vector<std::string>{"model", "out", "run"}));
}

// An attempt that was frozen while the next one trained and exported.
TEST_F(ExportTest, AnAttemptThatIsOverDoesNotReplaceTheExportOfALaterOne) {
  const std::string out = directory_.File("out");
  const std::string later = WriteCheckpoint(run_, Random(24), Random(5), 2);
  ASSERT_TRUE(ExportCheckpoint({later, model_, out, "", /*attempt=*/2}).ok());
  const auto stale = ExportCheckpoint({checkpoint_, model_, out, "", /*attempt=*/1});
  EXPECT_EQ(stale.status().code(), absl::StatusCode::kAborted);
  EXPECT_THAT(std::string(stale.status().message()), HasSubstr("attempt 2 has exported step-00000001.a2"));
  EXPECT_TRUE(CheckExportOf(out, later).ok());
  // People may export any checkpoint, and a folder whose checkpoints were deleted begins anew.
  ASSERT_TRUE(ExportCheckpoint({checkpoint_, model_, out}).ok());
  ASSERT_TRUE(ExportCheckpoint({later, model_, out, "", /*attempt=*/2}).ok());
  ASSERT_TRUE(RemoveTree(later).ok());
  EXPECT_TRUE(ExportCheckpoint({checkpoint_, model_, out, "", /*attempt=*/1}).ok());
}

TEST_F(ExportTest, ALinkToAFolderStays) {
  ASSERT_TRUE(MakeDirectory(directory_.File("large_disk")).ok());
  ASSERT_EQ(symlink(directory_.File("large_disk").c_str(), directory_.File("out").c_str()), 0);
  const auto result = ExportCheckpoint({checkpoint_, model_, directory_.File("out")});
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_TRUE(std::filesystem::is_symlink(directory_.File("out")));
  EXPECT_TRUE(CheckExportOf(directory_.File("large_disk"), checkpoint_).ok());
}

// As `data prepare --train-tokenizer` leaves it.
TEST_F(ExportTest, TakesTheTokenizerOfTheDataWhereTheModelHasNone) {
  const std::string out = directory_.File("out"), data = directory_.File("data");
  for (const std::string& path : {data, data + "/tokenizer"}) ASSERT_TRUE(MakeDirectory(path).ok());
  TestDirectory::Write(data + "/tokenizer/tokenizer.json", "of the data");
  TestDirectory::Write(data + "/tokenizer/tokenizer_config.json", "{}");
  TestDirectory::Write(data + "/tokenizer/notes.txt", "x");
  EXPECT_EQ(FindTokenizer(model_, data), model_);
  ASSERT_TRUE(ExportCheckpoint({checkpoint_, model_, out, data}).ok());
  EXPECT_EQ(TestDirectory::Read(out + "/tokenizer.json"), "tokenizer");

  ASSERT_TRUE(RemoveTree(model_ + "/tokenizer.json").ok());
  TestDirectory::Write(model_ + "/tokenizer_config.json", "{\"of\": \"another\"}");
  EXPECT_EQ(FindTokenizer(model_, data), data + "/tokenizer");
  EXPECT_EQ(FindTokenizer(model_, data + "/eval"), data + "/tokenizer");
  ASSERT_TRUE(ExportCheckpoint({checkpoint_, model_, out, data}).ok());
  EXPECT_EQ(TestDirectory::Read(out + "/tokenizer.json"), "of the data");
  EXPECT_EQ(TestDirectory::Read(out + "/tokenizer_config.json"), "{}");
  EXPECT_FALSE(std::filesystem::exists(out + "/notes.txt"));

  // The checkpoint knows where the data was.
  Manifest manifest;
  manifest.step = manifest.attempt = 7;
  manifest.identity = nlohmann::json({{"data_path", data}, {"architecture", "LlamaForCausalLM"}}).dump();
  const float one = 1;
  ASSERT_TRUE(WriteShard(run_, {7, 7}, 0, {{"weights/w", "F32", {1}, {1}, {{0}, {1}}, &one}}, nullptr).ok());
  ASSERT_TRUE(CommitCheckpoint(run_, manifest, 1, nullptr).ok());
  ASSERT_TRUE(ExportCheckpoint({run_ + "/step-00000007.a7", model_, out}).ok());
  EXPECT_EQ(TestDirectory::Read(out + "/tokenizer.json"), "of the data");
  // And the class of the model, which only a config.json without one is given.
  EXPECT_EQ(
      TestDirectory::Read(out + "/config.json"),
      "{\n  \"torch_dtype\": \"bfloat16\",\n  \"x\": 1.0,\n  \"architectures\": [\n    \"LlamaForCausalLM\"\n  ]\n}\n");
  const std::string named = "{\"architectures\":  [\"Own\"]}";
  TestDirectory::Write(model_ + "/config.json", named);
  ASSERT_TRUE(ExportCheckpoint({run_ + "/step-00000007.a7", model_, out}).ok());
  EXPECT_EQ(TestDirectory::Read(out + "/config.json"), named);
  EXPECT_EQ(FindTokenizer(model_, directory_.File("run")), "");
  EXPECT_EQ(FindTokenizer("", ""), "");
}

TEST_F(ExportTest, TheModelIsTheOneOfTheTraining) {
  const std::string trained = "{\"torch_dtype\": \"bfloat16\"}", out = directory_.File("out");
  const std::string checkpoint =
      WriteCheckpoint(run_, Random(24), Random(5), /*attempt=*/2,
                      nlohmann::json({{"model_path", model_}, {"config_json", trained}}).dump());
  const auto result = ExportCheckpoint({checkpoint, "", out});
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->dtype, "BF16");
  EXPECT_EQ(TestDirectory::Names(out),
            (std::vector<std::string>{"config.json", "generation_config.json", "model.safetensors", "modeling_x.py",
                                      "tacc_export.json", "tokenizer.json"}));
  // It has gone elsewhere.
  ASSERT_TRUE(RemoveTree(model_).ok());
  ASSERT_TRUE(ExportCheckpoint({checkpoint, "", out}).ok());
  EXPECT_EQ(TestDirectory::Names(out),
            (std::vector<std::string>{"config.json", "model.safetensors", "tacc_export.json"}));
  EXPECT_EQ(TestDirectory::Read(out + "/config.json"), trained);
  // There was none, as of a graph that is no longer there.
  ASSERT_TRUE(ExportCheckpoint({checkpoint_, "", out}).ok());
  EXPECT_EQ(TestDirectory::Names(out), (std::vector<std::string>{"model.safetensors", "tacc_export.json"}));
}

TEST_F(ExportTest, TheConfigIsTheOneOfTheTraining) {
  const std::string trained = "{\"rms_norm_eps\":  1e-5, \"torch_dtype\": \"bfloat16\"}", out = directory_.File("out");
  const std::string checkpoint =
      WriteCheckpoint(run_, Random(24), Random(5), /*attempt=*/2, nlohmann::json({{"config_json", trained}}).dump());
  const auto exported = [&](const std::string& now, const std::string& of_job = "") {
    if (now.empty()) {
      EXPECT_TRUE(RemoveTree(model_ + "/config.json").ok());
    } else {
      TestDirectory::Write(model_ + "/config.json", now);
    }
    ExportRequest request{checkpoint, model_, out};
    request.config_json = of_job;
    const auto result = ExportCheckpoint(request);
    EXPECT_TRUE(result.ok()) << result.status();
    EXPECT_EQ(result->config_changed, !now.empty() && now != (of_job.empty() ? trained : of_job));
    return result->dtype + " " + TestDirectory::Read(out + "/config.json");
  };
  EXPECT_EQ(exported(trained), "BF16 " + trained);
  EXPECT_EQ(exported("{\"rms_norm_eps\": 1e-6}"), "BF16 " + trained);
  EXPECT_EQ(exported(trained.substr(0, 20)), "BF16 " + trained);
  EXPECT_EQ(exported(""), "BF16 " + trained);
  EXPECT_EQ(exported(trained, "{\"rms_norm_eps\": 1e-5}"), "F32 {\"rms_norm_eps\": 1e-5}");
}

TEST_F(ExportTest, DamageAndBadConfigsAreRefusedAndLeaveNothing) {
  const auto message = [&](absl::StatusCode code = absl::StatusCode::kInvalidArgument) {
    const auto result = ExportCheckpoint({checkpoint_, model_, directory_.File("out")});
    EXPECT_EQ(result.status().code(), code) << result.status();
    return std::string(result.status().message());
  };
  TestDirectory::Write(model_ + "/config.json", "{\"dtype\": \"float8\"}");
  EXPECT_THAT(message(), HasSubstr("dtype is \"float8\""));
  TestDirectory::Write(model_ + "/config.json", "[");
  EXPECT_THAT(message(absl::StatusCode::kUnavailable), HasSubstr("config.json: not a JSON object"));
  ASSERT_TRUE(RemoveTree(model_ + "/config.json").ok());
  EXPECT_THAT(message(absl::StatusCode::kNotFound), HasSubstr("config.json: cannot be opened"));
  TestDirectory::Write(model_ + "/config.json", "{}");
  const std::string shard = checkpoint_ + "/rank-00001.safetensors";
  std::string content = TestDirectory::Read(shard);
  content.back() ^= 1;
  TestDirectory::Write(shard, content);
  EXPECT_THAT(message(), HasSubstr("rank-00001.safetensors: SHA-256"));
  EXPECT_EQ(TestDirectory::Names(directory_.path()), (std::vector<std::string>{"model", "run"}));
}

TEST_F(ExportTest, AGraphWithoutAModelDirectoryGivesWeightsOnly) {
  const auto result = ExportCheckpoint({checkpoint_, "", directory_.File("out")});
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->dtype, "F32");
  EXPECT_EQ(TestDirectory::Names(directory_.File("out")),
            (std::vector<std::string>{"model.safetensors", "tacc_export.json"}));
}

}  // namespace
}  // namespace tacc::worker
