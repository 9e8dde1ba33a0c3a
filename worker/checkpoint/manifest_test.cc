#include "worker/checkpoint/manifest.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "nlohmann/json.hpp"

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
  manifest.cursor_step = 200;
  manifest.files = {{"rank-00000.safetensors", 10, std::string(64, 'a')},
                    {"rank-00001.safetensors", 11, std::string(64, 'b')}};
  manifest.tensors["weights/w"] = {
      "F32", {3, 2}, {6}, {{"rank-00000.safetensors", {{0, 0}, {2, 2}}}, {"rank-00001.safetensors", {{2, 0}, {1, 2}}}}};
  return manifest;
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
    for (const bool remove : {true, false}) {
      nlohmann::json changed = whole;
      if (remove && changed.at(pointer.parent_pointer()).is_object()) {
        changed.at(pointer.parent_pointer()).erase(pointer.back());
      } else {
        changed[pointer] = -1.5;
      }
      const auto parsed = ManifestFromJson(changed.dump(), "dir/manifest.json", ManifestSlices::kComplete);
      ASSERT_FALSE(parsed.ok()) << item.key();
      EXPECT_THAT(std::string(parsed.status().message()), HasSubstr("dir/manifest.json: ")) << item.key();
    }
  }
}

TEST(ManifestTest, EveryCutIsRefused) {
  const std::string text = ManifestToJson(Example());
  for (size_t size = 0; size + 1 < text.size(); ++size) {  // Without the last newline it is still whole.
    EXPECT_FALSE(ManifestFromJson(text.substr(0, size), "m", ManifestSlices::kComplete).ok()) << size;
  }
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
  changed["format"] = 2;
  EXPECT_THAT(std::string(ManifestFromJson(changed.dump(), "m", ManifestSlices::kComplete).status().message()),
              HasSubstr("format 2"));
}

}  // namespace
}  // namespace tacc::worker
