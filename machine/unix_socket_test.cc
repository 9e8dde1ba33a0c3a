#include "machine/unix_socket.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <string>

namespace tacc {
namespace {

TEST(UnixSocketTest, AnAddressHasAWholePlainPathThatASocketMayHave) {
  EXPECT_EQ(*UnixSocketPath("unix:/run/tacc/a-b_c.sock"), "/run/tacc/a-b_c.sock");
  const std::string longest = "/" + std::string(106, 'x');
  EXPECT_EQ(*UnixSocketPath(UnixAddress(longest)), longest);
  const auto why = [](const std::string& address) { return std::string(UnixSocketPath(address).status().message()); };
  EXPECT_EQ(why(UnixAddress(longest + "y")),
            "the path of unix:" + longest + "y has 108 bytes; that of a socket may have 107: give a shorter one");
  EXPECT_EQ(why("unix:here"), "\"unix:here\" is not unix:/PATH, with a whole path");
  EXPECT_EQ(why("unix:/run/"), "\"unix:/run/\" is not unix:/PATH, with a whole path");
  for (const char* path : {"/a b", "/a%20b", "/a?b", "/a#b", "/a\nb"})
    EXPECT_NE(why(UnixAddress(path)).find("other characters than letters"), std::string::npos) << path;
}

class PrivateFolderTest : public testing::Test {
 protected:
  PrivateFolderTest() : old_mask_(umask(0)) {}
  ~PrivateFolderTest() override {
    umask(old_mask_);
    std::filesystem::remove_all(base_);
  }
  static mode_t Mode(const std::string& path) {
    struct stat info = {};
    EXPECT_EQ(stat(path.c_str(), &info), 0);
    return info.st_mode & 07777;
  }
  const mode_t old_mask_;
  const std::string base_ = testing::TempDir() + "/private-folder-" + std::to_string(getpid());
};

TEST_F(PrivateFolderTest, IsMadeForItsUserAloneWhateverTheUmask) {
  ASSERT_TRUE(MakePrivateFolder(base_ + "/above/it").ok());
  EXPECT_EQ(Mode(base_ + "/above/it"), 0700u);
  EXPECT_TRUE(MakePrivateFolder(base_ + "/above/it").ok()) << "it is there";
}

TEST_F(PrivateFolderTest, OneThatOthersMayEnterIsRefused) {
  std::filesystem::create_directories(base_);
  ASSERT_EQ(chmod(base_.c_str(), 0710), 0);
  EXPECT_EQ(MakePrivateFolder(base_).message(), "folder " + base_ +
                                                    " can be entered by other users (mode 0710); `chmod 700` it, or "
                                                    "take another");
  ASSERT_EQ(chmod(base_.c_str(), 0700), 0);
  EXPECT_TRUE(MakePrivateFolder(base_).ok());
}

TEST_F(PrivateFolderTest, OneOfAnotherUserIsRefused) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root, to give a folder away";
  std::filesystem::create_directories(base_);
  ASSERT_EQ(chmod(base_.c_str(), 0700), 0);
  ASSERT_EQ(chown(base_.c_str(), 4242, 4242), 0);
  EXPECT_EQ(MakePrivateFolder(base_).message(), "folder " + base_ + " belongs to user 4242, not to 0; take another");
}

TEST_F(PrivateFolderTest, ALinkOfAnotherUserIsRefused) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root, to give a link away";
  const std::string folder = base_ + "/own", link = base_ + "/link";
  ASSERT_TRUE(MakePrivateFolder(folder).ok());
  std::filesystem::create_directory_symlink(folder, link);
  EXPECT_TRUE(MakePrivateFolder(link).ok());
  ASSERT_EQ(lchown(link.c_str(), 4242, 4242), 0);
  EXPECT_EQ(MakePrivateFolder(link).message(), "folder " + link + " is a symbolic link of user 4242; take another");
}

TEST(PeerUserTest, IsThatOfTheProcessAtTheOtherEnd) {
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
  EXPECT_EQ(PeerUser(ends[0]), geteuid());
  EXPECT_TRUE(IsOwnUser(geteuid()));
  EXPECT_TRUE(IsOwnUser(0));
  EXPECT_FALSE(IsOwnUser(4242));
  close(ends[0]);
  close(ends[1]);
  EXPECT_EQ(PeerUser(STDIN_FILENO), absl::nullopt) << "no socket";
}

}  // namespace
}  // namespace tacc
