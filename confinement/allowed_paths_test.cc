#include "confinement/allowed_paths.h"

#include <errno.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "confinement/confine.h"
#include "confinement/landlock.h"
#include "confinement/open_beneath.h"
#include "confinement/testing/hostile_tree.h"

namespace tacc {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using Use = AllowedPaths::Use;

constexpr size_t kWantedPaths = 200;
constexpr size_t kLongestMessage = 1000;

std::string Message(const absl::Status& status) { return std::string(status.message()); }

// What a file holds that this process may open; empty otherwise.
std::string Content(const std::string& path) {
  const Descriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  char buffer[256];
  const ssize_t size = read(file.get(), buffer, sizeof(buffer));
  return size > 0 ? std::string(buffer, static_cast<size_t>(size)) : "";
}

TEST(AllowedPathsTest, HostilePathsAreRefusedWithOneLineAndNothingIsTouched) {
  HostileTree tree;
  EXPECT_GE(tree.paths().size(), kWantedPaths);
  const AllowedPaths allowed({tree.root()}, {});
  (void)tree.TakeTouched();
  for (const std::string& path : tree.paths()) {
    for (const Use use : {Use::kRead, Use::kWrite}) {
      const absl::Status status = allowed.Check(path, use);
      EXPECT_TRUE(absl::IsInvalidArgument(status)) << QuotedPath(path) << ": " << status;
      const std::string message = Message(status);
      EXPECT_THAT(message, HasSubstr(QuotedPath(path)));
      EXPECT_LT(message.size(), kLongestMessage);
      for (const char c : message) EXPECT_GE(static_cast<unsigned char>(c), 32) << message;
    }
  }
  EXPECT_EQ(tree.TakeTouched(), 0);
}

// Where the kernel cannot resolve a path in one step, names are resolved one by one.
TEST(AllowedPathsTest, NeitherResolverFindsWhatIsOutside) {
  HostileTree tree;
  const Descriptor root(open(tree.root().c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  int num_found = 0;
  for (const Resolver resolver : {Resolver::kKernel, Resolver::kByName}) {
    if (resolver != BestResolver() && resolver == Resolver::kKernel) continue;
    for (const Links links : {Links::kBeneath, Links::kNone}) {
      for (const std::string& path : tree.paths()) {
        const std::string rest = path.rfind(tree.root(), 0) == 0 ? path.substr(tree.root().size()) : path;
        const Descriptor found =
            FindBeneath(root.get(), rest.substr(std::min(rest.size(), rest.find_first_not_of('/'))), links, resolver);
        if (!found.is_open()) continue;
        ++num_found;
        const std::string place = std::filesystem::read_symlink(absl::StrCat("/proc/self/fd/", found.get()));
        EXPECT_TRUE(place == tree.root() || place.rfind(tree.root() + "/", 0) == 0) << path << " is " << place;
      }
      const Descriptor inside = FindBeneath(root.get(), "data/tokens", links, resolver);
      EXPECT_TRUE(inside.is_open()) << strerror(errno);
    }
  }
  EXPECT_GT(num_found, 0);  // The pipes.
}

TEST(AllowedPathsTest, WhatLiesBeneathARootMayBeUsed) {
  HostileTree tree;
  std::filesystem::create_directories(tree.Allowed("v2"));
  std::filesystem::create_symlink("v2", tree.Allowed("current"));
  std::filesystem::create_directory_symlink(tree.root(), tree.Outside("alias"));
  const AllowedPaths allowed({tree.root()}, {tree.Outside("folder")});
  for (const std::string& path : {tree.root(), tree.Allowed(""), tree.Allowed("data/tokens"), tree.Allowed("data/"),
                                  tree.Allowed("./data//inner"), tree.Allowed("runs/new/deep")}) {
    EXPECT_TRUE(allowed.Check(path, Use::kRead).ok()) << path << ": " << allowed.Check(path, Use::kRead);
    EXPECT_TRUE(allowed.Check(path, Use::kWrite).ok()) << path << ": " << allowed.Check(path, Use::kWrite);
  }
  // A link within the root is followed to read, not to write.
  EXPECT_TRUE(allowed.Check(tree.Allowed("current"), Use::kRead).ok());
  EXPECT_THAT(Message(allowed.Check(tree.Allowed("current/run"), Use::kWrite)), HasSubstr("symbolic link"));
  // A root for reading.
  EXPECT_TRUE(allowed.Check(tree.Outside("folder/config.json"), Use::kRead).ok());
  EXPECT_FALSE(allowed.Check(tree.Outside("folder/config.json"), Use::kWrite).ok());
  // A root that is a link may be named either way.
  const AllowedPaths aliased({tree.Outside("alias")}, {});
  EXPECT_TRUE(aliased.Check(tree.Outside("alias/data"), Use::kWrite).ok());
  EXPECT_TRUE(aliased.Check(tree.Allowed("data"), Use::kWrite).ok());
}

TEST(AllowedPathsTest, WithoutRootsOnlyTheTextIsChecked) {
  const AllowedPaths anywhere;
  EXPECT_TRUE(anywhere.Check("/etc/passwd", Use::kRead).ok());
  EXPECT_THAT(Message(anywhere.Check("/tmp/a\nb", Use::kRead)), AllOf(HasSubstr("\\n"), Not(HasSubstr("\n"))));
  EXPECT_FALSE(anywhere.Check("data", Use::kRead).ok());
}

TEST(AllowedPathsTest, ARootThatIsAwayIsNoFaultOfThePath) {
  TestDirectory directory;
  const AllowedPaths allowed({directory.File("mount")}, {});
  EXPECT_TRUE(absl::IsNotFound(allowed.Check(directory.File("mount/data"), Use::kRead)));
  std::filesystem::create_directories(directory.File("mount/data"));
  EXPECT_TRUE(allowed.Check(directory.File("mount/data"), Use::kRead).ok());
}

TEST(AllowedPathsTest, RootsOfAFlag) {
  HostileTree tree;
  const auto roots = RootsOfFlag("--allow-path", {tree.Allowed("data/../"), "/"});
  ASSERT_TRUE(roots.ok()) << roots.status();
  EXPECT_THAT(*roots, ::testing::ElementsAre(tree.root(), "/"));
  EXPECT_THAT(Message(RootsOfFlag("--allow-path", {tree.Allowed("data/tokens")}).status()),
              AllOf(HasSubstr("--allow-path"), HasSubstr("not a folder")));
  const AllowedPaths all(*roots, {});
  EXPECT_TRUE(all.Check("/usr", Use::kRead).ok());
}

// What uses a path is confined as well: a link that is made after the check leads nowhere either.
TEST(ConfineTest, HostilePathsCannotBeOpened) {
  if (!HasLandlock()) GTEST_SKIP() << "this kernel has no Landlock";
  HostileTree tree;
  const Confinement confinement{AllowedPaths({tree.root()}, {}), std::nullopt};
  (void)tree.TakeTouched();
  int num_tried = 0;
  ASSERT_TRUE(RunConfined(confinement, [&] {
                for (const std::string& path : tree.paths()) {
                  if (path.rfind("/dev/", 0) == 0 || path.find("pipe") != std::string::npos) continue;
                  ++num_tried;
                  EXPECT_NE(Content(path), kSecret) << path;
                  const Descriptor made(open(path.c_str(), O_WRONLY | O_CREAT | O_NONBLOCK | O_CLOEXEC, 0600));
                  std::error_code ignored;
                  std::filesystem::create_directories(path, ignored);
                  std::filesystem::remove_all(path.find("outside") != std::string::npos ? path : "", ignored);
                }
              }).ok());
  EXPECT_GT(num_tried, 150);
  EXPECT_EQ(Content(tree.Outside("secret")), kSecret);
  EXPECT_FALSE(std::filesystem::exists(tree.Outside("new")));
  EXPECT_FALSE(std::filesystem::exists(tree.Outside("not-there")));
  EXPECT_EQ(Content(tree.Allowed("data/tokens")), "harmless");
}

TEST(ConfineTest, ASwappedLinkLeadsNowhere) {
  if (!HasLandlock()) GTEST_SKIP() << "this kernel has no Landlock";
  HostileTree tree;
  const AllowedPaths allowed({tree.root()}, {});
  SwappedFolder swapped(tree);
  (void)tree.TakeTouched();
  int num_read = 0, num_refused = 0;
  ASSERT_TRUE(RunConfined({allowed, std::nullopt}, [&] {
                for (int i = 0; i < 5000 || num_read == 0 || num_refused == 0; ++i) {
                  if (!allowed.Check(swapped.File(), Use::kRead).ok()) ++num_refused;
                  const std::string content = Content(swapped.File());
                  EXPECT_NE(content, kSecret);
                  num_read += content == "harmless" ? 1 : 0;
                }
              }).ok());
  EXPECT_GT(swapped.num_swaps(), 100);
  EXPECT_EQ(tree.TakeTouched(), 0);
}

TEST(ConfineTest, OnlyTheWorkIsConfined) {
  if (!HasLandlock()) GTEST_SKIP() << "this kernel has no Landlock";
  HostileTree tree;
  std::string inside, outside;
  ASSERT_TRUE(RunConfined({AllowedPaths({tree.root()}, {tree.Outside("folder")}), std::nullopt}, [&] {
                inside = Content(tree.Allowed("data/tokens"));
                outside = Content(tree.Outside("secret"));
                TestDirectory::Write(tree.Allowed("new"), "x");
                TestDirectory::Write(tree.Outside("folder/new"), "x");
                EXPECT_EQ(Content(tree.Outside("folder/config.json")), kSecret);
                EXPECT_NE(Content("/proc/self/status"), "");
              }).ok());
  EXPECT_EQ(inside, "harmless");
  EXPECT_EQ(outside, "");
  EXPECT_TRUE(std::filesystem::exists(tree.Allowed("new")));
  EXPECT_FALSE(std::filesystem::exists(tree.Outside("folder/new")));
  EXPECT_EQ(Content(tree.Outside("secret")), kSecret);
}

}  // namespace
}  // namespace tacc
