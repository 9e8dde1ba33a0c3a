#include "worker/checkpoint/manifest.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "worker/checkpoint/files/sealed_json.h"

namespace tacc::worker {
namespace {

using ::testing::HasSubstr;

Manifest Example() {
  Manifest manifest;
  manifest.version = "0.1.0";
  manifest.job = "quickstart-1";
  manifest.step = 200;
  manifest.attempt = 1;
  manifest.identity = R"({"data":"bb","model":"aa","seed":18446744073709551615})";
  manifest.layout = {{"dp", 1}, {"fsdp", 2}};
  manifest.files = {{"rank-00000.safetensors", 10, std::string(64, 'a')},
                    {"rank-00001.safetensors", 11, std::string(64, 'b')}};
  manifest.tensors["weights/w"] = {
      "F32", {3, 2}, {6}, {{"rank-00000.safetensors", {{0, 0}, {2, 2}}}, {"rank-00001.safetensors", {{2, 0}, {1, 2}}}}};
  return manifest;
}

// A manifest that somebody has changed and sealed again.
std::string Sealed(nlohmann::json changed) {
  changed.erase(kSealKey);
  return SealJson(changed.dump());
}

absl::Status Parse(const std::string& text) {
  return ManifestFromJson(text, "dir/manifest.json", ManifestSlices::kComplete).status();
}

TEST(ManifestTest, RoundTrips) {
  const std::string text = ManifestToJson(Example());
  const auto parsed = ManifestFromJson(text, "m", ManifestSlices::kComplete);
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(ManifestToJson(*parsed), text);
  EXPECT_EQ(parsed->identity, Example().identity);
  EXPECT_EQ(parsed->layout.at("fsdp"), 2);
  EXPECT_EQ(parsed->tensors.at("weights/w").slices[1].rectangle.offset, (std::vector<int64_t>{2, 0}));
}

// Each field left out, and each replaced by a value of another type, is an error that names it.
TEST(ManifestTest, EachFieldIsNeededAndTyped) {
  const nlohmann::json whole = nlohmann::json::parse(ManifestToJson(Example()));
  const nlohmann::json flat = whole.flatten();
  for (const auto& item : flat.items()) {
    const nlohmann::json::json_pointer pointer(item.key());
    const std::string parent = pointer.parent_pointer().to_string();
    if (parent == "/layout" || parent == "/identity") continue;  // Anything may be there.
    if (parent.empty() && pointer.back() == kSealKey) continue;
    for (const bool remove : {true, false}) {
      nlohmann::json changed = whole;
      if (remove && changed.at(pointer.parent_pointer()).is_object()) {
        changed.at(pointer.parent_pointer()).erase(pointer.back());
      } else {
        changed[pointer] = -1.5;
      }
      const absl::Status status = Parse(Sealed(changed));
      ASSERT_FALSE(status.ok()) << item.key();
      EXPECT_THAT(std::string(status.message()), HasSubstr("dir/manifest.json: ")) << item.key();
      EXPECT_THAT(std::string(status.message()), testing::Not(HasSubstr("SHA-256"))) << item.key();
    }
  }
}

TEST(ManifestTest, EveryCutIsRefused) {
  const std::string text = ManifestToJson(Example());
  for (size_t size = 0; size < text.size(); ++size) EXPECT_FALSE(Parse(text.substr(0, size)).ok()) << size;
}

TEST(ManifestTest, EveryChangedByteIsRefused) {
  const std::string whole = ManifestToJson(Example());
  for (size_t at = 0; at < whole.size(); ++at) {
    std::string changed = whole;
    for (int bit = 0; bit < 8; ++bit) {
      changed[at] = static_cast<char>(whole[at] ^ (1 << bit));
      EXPECT_EQ(Parse(changed).code(), absl::StatusCode::kInvalidArgument) << at << ": " << changed[at];
    }
    // What an editor would make of a number or of white space.
    for (const char other : {'0', '1', '2', '9', ' ', '\n', '"', '}'}) {
      changed[at] = other;
      if (changed == whole) continue;
      EXPECT_EQ(Parse(changed).code(), absl::StatusCode::kInvalidArgument) << at << ": " << other;
    }
    EXPECT_FALSE(Parse(whole.substr(0, at) + whole.substr(at + 1)).ok()) << at;
    EXPECT_FALSE(Parse(whole.substr(0, at) + " " + whole.substr(at)).ok()) << at;
  }
}

// Each is JSON of the right form, so only the checksum can tell.
TEST(ManifestTest, EditsAreDamage) {
  const std::string whole = ManifestToJson(Example());
  const std::vector<std::pair<std::string, std::string>> edits = {
      {R"("step":200)", R"("step":201)"},
      {R"("cursor":{"step":200})", R"("cursor":{"step":201})"},
      {R"("attempt":1)", R"("attempt":2)"},
      {R"("shape":[3,2],"stored_shape":[6])", R"("shape":[3,2],"stored_shape":[2,3])"},
      {"18446744073709551615", "4"},
      {R"("data":"bb")", R"("data":"cc")"},
      {R"("fsdp":2)", R"("fsdp":4)"},
      {R"("job":"quickstart-1")", R"("job":"other-1")"},
      {R"("format":2)", R"("format":1)"},
      {R"("format":2)", R"("format":3)"},
  };
  for (const auto& [from, to] : edits) {
    std::string changed = whole;
    const size_t at = changed.find(from);
    ASSERT_NE(at, std::string::npos) << from;
    const absl::Status status = Parse(changed.replace(at, from.size(), to));
    EXPECT_THAT(std::string(status.message()), HasSubstr("the file is damaged")) << to;
  }
  // The same values in another order or form.
  EXPECT_FALSE(Parse(nlohmann::json::parse(whole).dump(2)).ok());
  EXPECT_FALSE(Parse(whole + "\n").ok());
}

TEST(ManifestTest, TheFirstFormatHasNoChecksum) {
  nlohmann::json old = nlohmann::json::parse(ManifestToJson(Example()));
  old["format"] = 1;
  old.erase(kSealKey);
  const auto parsed = ManifestFromJson(old.dump() + "\n", "m", ManifestSlices::kComplete);
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_FALSE(parsed->has_checksum);
  EXPECT_EQ(parsed->step, 200);
  EXPECT_TRUE(ManifestFromJson(ManifestToJson(*parsed), "m", ManifestSlices::kComplete)->has_checksum);
  old["format"] = 2;
  EXPECT_THAT(std::string(Parse(old.dump()).message()), HasSubstr("does not end with the checksum"));
}

TEST(ManifestTest, AbsurdStepsAreRefused) {
  nlohmann::json changed = nlohmann::json::parse(ManifestToJson(Example()));
  for (const int64_t step : {int64_t{1} << 31, int64_t{1000000000000000}, INT64_MAX}) {
    changed["step"] = changed["cursor"]["step"] = step;
    EXPECT_THAT(std::string(Parse(Sealed(changed)).message()), HasSubstr("out of range")) << step;
  }
  changed["step"] = changed["cursor"]["step"] = 200;
  changed["attempt"] = int64_t{1} << 31;
  EXPECT_THAT(std::string(Parse(Sealed(changed)).message()), HasSubstr("out of range"));
  changed["attempt"] = 1;
  changed["cursor"]["step"] = 199;
  EXPECT_THAT(std::string(Parse(Sealed(changed)).message()), HasSubstr("the cursor is at step 199"));
}

TEST(ManifestTest, RefusesSlicesThatDoNotTile) {
  const auto message = [](const Manifest& manifest) {
    return std::string(CheckManifest(manifest, "m", ManifestSlices::kComplete).message());
  };
  Manifest manifest = Example();
  manifest.tensors["weights/w"].slices.pop_back();
  EXPECT_THAT(message(manifest), HasSubstr("the slices hold 4 of 6 elements"));
  EXPECT_TRUE(CheckManifest(manifest, "m", ManifestSlices::kPart).ok());
  manifest = Example();
  manifest.tensors["weights/w"].slices[1].rectangle.offset = {1, 0};
  EXPECT_THAT(message(manifest), HasSubstr("overlap"));
  manifest.tensors["weights/w"].slices[1].rectangle.offset = {3, 0};
  EXPECT_THAT(message(manifest), HasSubstr("is not inside [3,2]"));
  manifest.tensors["weights/w"].slices[1].file = "other";
  EXPECT_THAT(message(manifest), HasSubstr("not in the list of files"));
  manifest.tensors["weights/w"].slices[1].file = "rank-00000.safetensors";
  EXPECT_THAT(message(manifest), HasSubstr("two slices in"));
  manifest = Example();
  manifest.tensors["weights/w"].stored_shape = {7};
  EXPECT_THAT(message(manifest), HasSubstr("not a reshape"));
  for (const int64_t merged_dims : {int64_t{0}, int64_t{3}, INT64_MAX}) {
    manifest = Example();
    manifest.tensors["weights/w"].merged_dims = merged_dims;
    EXPECT_THAT(message(manifest), HasSubstr(absl::StrCat("merged_dims ", merged_dims, " of [3,2]")));
  }
}

TEST(ManifestTest, SlicesMayCutLeadingDimsAsOne) {
  Manifest manifest = Example();
  ManifestTensor& tensor = manifest.tensors["weights/w"];
  EXPECT_THAT(ManifestToJson(manifest), testing::Not(HasSubstr("merged_dims")));
  tensor.merged_dims = 2;
  EXPECT_FALSE(CheckManifest(manifest, "m", ManifestSlices::kComplete).ok());
  tensor.slices[0].rectangle = {{0}, {1}};
  tensor.slices[1].rectangle = {{1}, {5}};
  const auto parsed = ManifestFromJson(ManifestToJson(manifest), "m", ManifestSlices::kComplete);
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(ManifestToJson(*parsed), ManifestToJson(manifest));
  EXPECT_EQ(parsed->tensors.at("weights/w").SlicedShape(), std::vector<int64_t>{6});
  EXPECT_EQ(parsed->tensors.at("weights/w").shape, (std::vector<int64_t>{3, 2}));
}

TEST(ManifestTest, RefusesFileNamesThatLeaveTheDirectory) {
  for (const char* name : {"../x", "/etc/passwd", "..", "", "a/b", "manifest.json"}) {
    Manifest manifest = Example();
    manifest.files[0].name = name;
    EXPECT_THAT(std::string(CheckManifest(manifest, "m", ManifestSlices::kComplete).message()),
                HasSubstr("not a plain file name"));
  }
}

TEST(ManifestTest, RefusesAnIdentityThatIsNotAnObject) {
  Manifest manifest = Example();
  manifest.identity = "[1]";
  EXPECT_THAT(std::string(CheckManifest(manifest, "m", ManifestSlices::kComplete).message()), HasSubstr("identity"));
}

TEST(ManifestTest, AnotherFormatIsNamed) {
  nlohmann::json changed = nlohmann::json::parse(ManifestToJson(Example()));
  changed["format"] = 3;
  EXPECT_THAT(std::string(Parse(Sealed(changed)).message()), HasSubstr("format 3 but this version reads"));
}

// What prints such a value calls itself for each level.
TEST(ManifestTest, ADeepIdentityIsRefused) {
  const std::string deep = std::string(1'000'000, '[') + std::string(1'000'000, ']');
  const std::string text = SealJson(absl::StrCat(R"({"format":2,"identity":{"a":)", deep, "}}"));
  EXPECT_THAT(std::string(Parse(text).message()), HasSubstr("not a JSON object"));
}

}  // namespace
}  // namespace tacc::worker
