#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "gmock/gmock.h"
#include "graph/import/import.h"
#include "graph/ir/text.h"
#include "gtest/gtest.h"

namespace tacc::graph {
namespace {

using ::testing::HasSubstr;

constexpr char kGraph[] = R"TEXT(# A bigram model.
tacc.graph 1

%tokens = input "tokens" : i32[B,S]
%targets = input "targets" : i32[B,S]
%table = param "table.weight" init="normal(0.02)" : f32[9,9]
%logits = embedding %table, %tokens : f32[B,S,9] @layers.0.table
%loss, %count, %lse = cross_entropy %logits, %targets : f32[], f32[], f32[B,S]
output "loss" %loss
output "target_tokens" %count
)TEXT";

class ImportGraphTest : public testing::Test {
 protected:
  absl::StatusOr<ImportedModel> Import(const std::string& text) {
    ImportOptions options;
    options.batch = 2;
    options.seq_len = 4;
    return ImportGraphText(text, "m.graph", options, ops_);
  }
  // The error of kGraph with `from` replaced by `to`.
  std::string Error(const std::string& from, const std::string& to) {
    const std::string text = absl::StrReplaceAll(kGraph, {{from, to}});
    EXPECT_NE(text, kGraph) << from;
    const absl::Status status = Import(text).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    return std::string(status.message());
  }
  OpTable ops_;
};

TEST_F(ImportGraphTest, BindsSymbols) {
  const absl::StatusOr<ImportedModel> model = Import(kGraph);
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ(model->vocab_size, 9);
  EXPECT_EQ(model->num_parameters, 81);
  EXPECT_THAT(model->units, testing::ElementsAre("layers.0"));
  EXPECT_THAT(Print(model->forward), HasSubstr("f32[2,4,9]"));
}

// What a client sends: inputs of any name and type, of which dim 0 may be the batch; and what the model returns.
TEST_F(ImportGraphTest, InputsAndOutputsOfAnyName) {
  const absl::StatusOr<ImportedModel> model = Import(R"TEXT(tacc.graph 1
%pixels = input "pixels" : f32[B,S,3]
%scale = input "scale" : f32[2,4]
%labels = input "labels" : i32[B]
%w = param "w" : f32[9,3]
%flat = reshape %pixels shape=[B*S,3] : f32[B*S,3]
%y = einsum %flat, %w spec="bk,nk->bn" : f32[B*S,9]
%pad = pad %y dim=0 low=1 high=S-1 : f32[B*S+S,9]
%cut = slice %pad dim=0 start=1 limit=B+1 : f32[B,9]
%loss, %count, %lse = cross_entropy %cut, %labels : f32[], f32[], f32[B]
output "loss" %loss
output "target_tokens" %count
output "logits" %cut
)TEXT");
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_THAT(model->live_inputs, testing::ElementsAre("pixels", "scale", "labels"));
  const std::string text = Print(model->forward);
  EXPECT_THAT(text, HasSubstr("%pixels = input \"pixels\" axes=[batch,sequence,none] : f32[2,4,3]"));
  EXPECT_THAT(text, HasSubstr("%scale = input \"scale\" axes=[none,none] : f32[2,4]"));
  EXPECT_THAT(text, HasSubstr("%labels = input \"labels\" axes=[batch] : i32[2]"));
  EXPECT_THAT(text, HasSubstr("%pad = pad %y dim=0 high=3 low=1 : f32[12,9]"));
  EXPECT_THAT(text, HasSubstr("output \"logits\" %cut returned=true"));
  EXPECT_EQ(model->vocab_size, 9);
}

// Of what the data's tokens may be, a table of positions says nothing.
TEST_F(ImportGraphTest, VocabularyIsOfWhatTheTokensChoose) {
  const absl::StatusOr<ImportedModel> model = Import(R"TEXT(tacc.graph 1
%tokens = input "tokens" : i32[B,S]
%targets = input "targets" : i32[B,S]
%words = param "words" : f32[9,3]
%places = param "places" : f32[4,3]
%rows = reshape %tokens shape=[B*S] : i32[B*S]
%x = embedding %words, %rows : f32[B*S,3]
%positions = positions length=S : i32[S]
%y = embedding %places, %positions : f32[S,3]
%z = broadcast %y dims=[1,2] shape=[B,S,3] : f32[B,S,3]
%flat = reshape %z shape=[B*S,3] : f32[B*S,3]
%sum = add %x, %flat : f32[B*S,3]
%logits = einsum %sum, %words spec="bk,nk->bn" : f32[B*S,9]
%flat_targets = reshape %targets shape=[B*S] : i32[B*S]
%loss, %count, %lse = cross_entropy %logits, %flat_targets : f32[], f32[], f32[B*S]
output "loss" %loss
output "target_tokens" %count
)TEXT");
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ(model->vocab_size, 9);
}

TEST_F(ImportGraphTest, FactsAreOfTheNodes) {
  const auto facts = [&](const std::string& from, const std::string& to, int64_t batch) {
    ImportOptions options;
    options.batch = batch;
    options.seq_len = 4;
    const absl::StatusOr<ImportedModel> model =
        ImportGraphText(absl::StrReplaceAll(kGraph, {{from, to}}), "m.graph", options, ops_);
    EXPECT_TRUE(model.ok()) << model.status();
    return model->facts;
  };
  const std::map<std::string, std::string> before = facts("", "", 2);
  EXPECT_EQ(before.size(), 1u);
  // Checkpoints know their graph by it: where graphs are printed otherwise, each would be of another training.
  EXPECT_EQ(before.at("graph"), "a9152b978554b329");
  EXPECT_EQ(facts("# A bigram model.", "# Of two words.", 6), before);
  EXPECT_NE(facts("normal(0.02)", "normal(0.03)", 2), before);
}

// What a micro-batch makes of a buffer is none of the outputs that the model returns.
TEST_F(ImportGraphTest, BuffersMayChange) {
  const auto with = [&](const std::string& buffer, const std::string& output) {
    return absl::StrReplaceAll(kGraph, {{"%table = ", buffer + "\n%table = "}, {"output \"loss\"", output}});
  };
  const std::string seen = "%seen = param \"seen\" role=buffer init=zeros : f32[]";
  const std::string changed = "%more = add %seen, %count : f32[]\noutput \"buffer:seen\" %more\noutput \"loss\"";
  const absl::StatusOr<ImportedModel> model = Import(with(seen, changed));
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_THAT(Print(model->forward), HasSubstr("output \"buffer:seen\" %more\n"));
  const auto error = [&](const std::string& buffer, const std::string& output) {
    return std::string(Import(with(buffer, output)).status().message());
  };
  EXPECT_THAT(error("%seen = param \"seen\" init=zeros : f32[]", changed),
              HasSubstr("m.graph:11:1: the graph has no param \"seen\" with role=buffer"));
  EXPECT_THAT(error(seen, "output \"buffer:seen\" %lse\noutput \"loss\""),
              HasSubstr("m.graph:10:1: output \"buffer:seen\" is f32[2,4]; wanted f32[] as the buffer"));
}

TEST_F(ImportGraphTest, ErrorsNameLineAndColumn) {
  EXPECT_EQ(
      Error("embedding %table", "embeding %table"),
      "m.graph:7:1: unknown op 'embeding'\n  %logits = embeding %table, %tokens : f32[B,S,9] @layers.0.table\n  ^");
  EXPECT_THAT(Error("f32[B,S,9]", "f32[B,S,8]"),
              HasSubstr("m.graph:7:1: the type of %logits is written f32[2,4,8], but embedding makes f32[2,4,9]"));
  EXPECT_THAT(Error("\"tokens\" : i32[B,S]", "\"tokens\" : i64[B,S]"),
              HasSubstr("m.graph:4:1: input \"tokens\" is i64[2,4]; wanted i32[2,4] (token ids, i32[B,S])"));
  EXPECT_THAT(
      Error("%targets = input \"targets\" : i32[B,S]", "%targets = constant value=0 dtype=i32 shape=[B,S] : i32[B,S]"),
      HasSubstr("the graph has no input \"targets\""));
  EXPECT_THAT(Error("%table = ", "%mask = input \"mask\" : i32[4,2*B]\n%table = "),
              HasSubstr("m.graph:6:1: dim 1 of input \"mask\" depends on B; of an input dim 0 may be B"));
  EXPECT_THAT(Error("input \"targets\"", "input \"document_start\""), HasSubstr("an input that the compiler adds"));
  EXPECT_THAT(
      Error("input \"targets\"", "input \"labels\" axes=[batch,none]"),
      HasSubstr("m.graph:5:1: an input of whole numbers takes limit=N and ignored=N, others no attributes, got axes="));
  EXPECT_THAT(Error("output \"loss\" %loss\n", ""), HasSubstr("the graph has no output \"loss\""));
  EXPECT_THAT(Error("output \"loss\" %loss", "output \"loss\" %lse"),
              HasSubstr("m.graph:9:1: output \"loss\" is f32[2,4]; wanted f32[]"));
  EXPECT_THAT(Error("f32[9,9]", "bf16[9,9]"),
              HasSubstr("m.graph:6:1: param \"table.weight\" is bf16[9,9]; wanted f32"));
  EXPECT_THAT(Error("init=\"normal(0.02)\"", "std=0.02"),
              HasSubstr("m.graph:6:1: param takes init=\"...\", stored=[...], axes=[NAME,...] and role=buffer, got "
                        "std=0.02"));
  EXPECT_THAT(Error("init=\"normal(0.02)\"", "stored=[80]"),
              HasSubstr("m.graph:6:1: stored=[80] is no reshape of f32[9,9]"));
  EXPECT_THAT(Error("%loss, %count, %lse = cross_entropy %logits, %targets : f32[], f32[], f32[B,S]",
                    "%loss, %count = cross_entropy %logits, %targets : f32[], f32[]"),
              HasSubstr("m.graph:8:1: cross_entropy has 3 results, the line names 2"));
  for (const char* init : {"normal(0.02", "one", "normal(nan)", "normal(1e39)", "uniform(1,0)"}) {
    EXPECT_THAT(Error("normal(0.02)", init),
                HasSubstr(absl::StrCat("m.graph:6:1: init \"", init, "\" is not known; use normal(STD)")));
  }
  EXPECT_THAT(Error("table.weight", "table\xff"), HasSubstr("m.graph:6:1: the name of a param must be UTF-8"));
  EXPECT_THAT(Error("table.weight", "__metadata__"), HasSubstr("is no name for a param"));
  EXPECT_THAT(Error("[9,9]", "[V,9]"),
              HasSubstr("m.graph:6:57: the dim 'V' has no value here; known names: B, S\n  %table"));
  EXPECT_THAT(Error("output \"target_tokens\" %count", "store \"weights/x\" %count"),
              HasSubstr("is not for a model's graph"));
}

// What an export could not write, or would write over another.
TEST_F(ImportGraphTest, ParamsBecomeTensorsOfTheirOwn) {
  const auto add = [&](const std::string& params) {
    const std::string text = absl::StrReplaceAll(kGraph, {{"%table = ", absl::StrCat(params, "%table = ")}});
    EXPECT_NE(text, kGraph);
    const absl::Status status = Import(text).status();
    return std::string(status.message());
  };
  int count = 0;
  const auto param = [&count](const std::string& name, const std::string& dims) {
    return absl::StrCat("%p", count++, " = param \"", name, "\" : f32[", dims, "] @layers.0\n");
  };
  EXPECT_EQ(add(param("w[0:4]", "4,3") + param("w[4:10]", "6,3")), "");
  EXPECT_EQ(add(param("w[:,0:4]", "2,4,3") + param("w[:,4:10]", "2,6,3")), "");
  EXPECT_THAT(add(param("w[:,0:4]", "2,4,3") + param("w[:,5:10]", "2,5,3")), HasSubstr("begins at row 5"));
  EXPECT_THAT(add(param("w[:,0:4]", "2,4,3") + param("w[:,4:10]", "3,6,3")), HasSubstr("differ in their other dims"));
  EXPECT_THAT(add(param("w[:,0:4]", "4,3")), HasSubstr("is named for 4 rows of a tensor, but is [4,3]"));
  EXPECT_THAT(add(param("w[:,0:4]", "4,4") + param("w[4:10]", "6,4")), HasSubstr("are rows of two dims; wanted one"));
  EXPECT_EQ(add(param("h.*", "2,3") + param("h.22", "3,3")), "");
  EXPECT_THAT(add(param("w", "4,3") + param("w[0:4]", "4,3")), HasSubstr("would both be tensor \"w\""));
  EXPECT_THAT(add(param("h.*", "4,3") + param("h.1", "3")), HasSubstr("would both be tensor \"h.1\""));
  EXPECT_THAT(add(param("w[0:4]", "5,3")), HasSubstr("is named for 4 rows of a tensor, but is [5,3]"));
  EXPECT_THAT(add(param("w[2:4]", "2,3")), HasSubstr("begins at row 2; the rows of \"w\" before it end at 0"));
  EXPECT_THAT(add(param("w[0:4]", "4,3") + param("w[2:14]", "12,3")), HasSubstr("begins at row 2"));
  EXPECT_THAT(add(param("w[0:4]", "4,3") + param("w[4:10]", "6,2")), HasSubstr("differ in their other dims"));
  EXPECT_THAT(add(param("z.*", "")), HasSubstr("has no dim"));
  EXPECT_THAT(add(param("e.*", "99999,3")), HasSubstr("each of its 99999 entries; at most 65536 are taken"));
  EXPECT_THAT(add(param("empty", "0,3")), HasSubstr("which is empty"));
}

TEST_F(ImportGraphTest, HasNoClasses) {
  ImportOptions options;
  options.wrap_layer_cls = {"Layer"};
  EXPECT_THAT(std::string(ImportGraphText(kGraph, "m.graph", options, ops_).status().message()),
              HasSubstr("dist.fsdp.wrap_layer_cls"));
}

TEST_F(ImportGraphTest, WeightsAreThoseBesideTheFile) {
  using Weights = ImportOptions::Weights;
  const std::filesystem::path folder = std::filesystem::path(testing::TempDir()) / "weights_beside_a_graph";
  std::filesystem::create_directories(folder);
  std::filesystem::remove(folder / "model.safetensors");
  std::ofstream(folder / "m.graph") << kGraph;
  const auto import = [&](Weights weights) {
    ImportOptions options;
    options.weights = weights;
    return ImportGraphFile((folder / "m.graph").string(), options, ops_);
  };
  const auto write = [&](const std::string& tensor) {
    const std::string header =
        absl::StrCat(R"({")", tensor, R"(":{"dtype":"F32","shape":[9,9],"data_offsets":[0,324]}})");
    std::ofstream file(folder / "model.safetensors", std::ios::binary);
    const uint64_t size = header.size();
    file.write(reinterpret_cast<const char*>(&size), sizeof size);
    file << header << std::string(324, '\0');
  };
  EXPECT_EQ(import(Weights::kAuto)->weights, Weights::kRandom);
  EXPECT_THAT(std::string(import(Weights::kPretrained).status().message()),
              HasSubstr("m.graph: there is no model.safetensors beside it; set model.weights: random"));
  write("table.weight");
  EXPECT_EQ(import(Weights::kAuto)->weights, Weights::kPretrained);
  EXPECT_EQ(import(Weights::kRandom)->weights, Weights::kRandom);
  write("other.weight");
  EXPECT_THAT(std::string(import(Weights::kAuto).status().message()),
              HasSubstr("are not those of its params; with model.weights: random they are left alone:\n"));
}

}  // namespace
}  // namespace tacc::graph
