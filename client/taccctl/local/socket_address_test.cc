#include "client/taccctl/local/socket_address.h"

#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "gtest/gtest.h"
#include "machine/unix_socket.h"

namespace tacc::client {
namespace {

TEST(SocketAddressTest, LiesInTheFolderThatIsGiven) {
  const auto address = NewSocketAddress("/home/someone/.local/state/tacc/up");
  ASSERT_TRUE(address.ok()) << address.status();
  EXPECT_EQ(*address, "unix:/home/someone/.local/state/tacc/up/coordinator.sock");
  RemoveSocketFolder(*address);  // It has made none.
}

TEST(SocketAddressTest, LiesInAFolderOfItsOwnWhereThePathIsNoSockets) {
  for (const std::string& folder : {"/home/" + std::string(100, 'x'), std::string("/home/Jane Doe")}) {
    const auto address = NewSocketAddress(folder);
    ASSERT_TRUE(address.ok()) << address.status();
    const auto path = UnixSocketPath(*address);
    ASSERT_TRUE(path.ok()) << path.status();
    const std::filesystem::path made = std::filesystem::path(*path).parent_path();
    struct stat info = {};
    ASSERT_EQ(stat(made.c_str(), &info), 0);
    EXPECT_EQ(info.st_mode & 07777, 0700u);
    std::ofstream(*path + ".lock") << "left";
    RemoveSocketFolder(*address);
    EXPECT_FALSE(std::filesystem::exists(made));
  }
}

TEST(SocketAddressTest, OtherFoldersStay) {
  const std::string folder = testing::TempDir() + "/socket-address-test";
  std::filesystem::create_directories(folder);
  RemoveSocketFolder("unix:" + folder + "/coordinator.sock");
  RemoveSocketFolder("127.0.0.1:7070");
  EXPECT_TRUE(std::filesystem::exists(folder));
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace tacc::client
