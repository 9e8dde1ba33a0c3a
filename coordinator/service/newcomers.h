// Connections of which nothing is known yet, and what they may cost. A connection is given to gRPC, which keeps some
// 200 KB for one, when it has sent its first byte; until a call of it was accepted it may take only so long and send so
// much, and there are only so many of them. One of them may send what the largest message has: gRPC names the sender of
// a call when its whole message is there. Whoever is known is not bounded here.
//
// Cost: a descriptor for each that is silent, two for each that has spoken and is not known. One thread, which sleeps
// unless some have spoken; then it asks for the bytes of each of them 100 times a second.
#ifndef TACC_COORDINATOR_SERVICE_NEWCOMERS_H_
#define TACC_COORDINATOR_SERVICE_NEWCOMERS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>

#include "absl/strings/string_view.h"

namespace tacc::coordinator {

// HOST:PORT of the name that gRPC gives a peer, without an IPv6 address's scope: [fe80::1]:4711 of
// ipv6:%5Bfe80::1%252%5D:4711.
std::string AddressOfPeer(absl::string_view peer);
// The same of a TCP socket's other end; an IPv4 address that is mapped into IPv6 as IPv4. Empty when there is none any
// more.
std::string AddressOfOtherEnd(int fd);
// Ends a TCP connection that another has the descriptor of, who then finds it closed. What has come and was not read is
// thrown away: it may be megabytes, and work of minutes.
void EndConnection(int fd);
// That the other end of a TCP connection has sent; negative: it is none any more.
int64_t BytesReceived(int fd);

class Newcomers {
 public:
  struct Limits {
    double seconds = 20;             // From the connection to its first call.
    int64_t bytes = 32 << 10;        // That it may send before that; more closes it,
    int64_t large_bytes = 10 << 20;  // but for one at a time, the oldest that still sends: it may send so much.
    size_t max_speaking = 128;       // That have sent something and are not known; of more the oldest is closed.
  };
  // `take` gets each connection that speaks, and owns it.
  Newcomers(Limits limits, std::function<void(int listener_fd, int fd)> take);
  // Closes those that are silent.
  ~Newcomers();

  // Owns `fd`, a TCP connection.
  void Arrive(int listener_fd, int fd);
  // Closes the connection that has been silent for longest. False: there is none.
  bool MakeRoom();
  // A call was accepted from there: gRPC's name of a peer, such as ipv4:10.0.0.1:4711. Returns the descriptor by which
  // `take` got that connection; -1: it was known before.
  int Greet(absl::string_view peer);

 private:
  struct Newcomer {
    int listener_fd;
    int fd;  // Of one that speaks, a duplicate.
    double since;
    std::string address;  // HOST:PORT.
    int taken = -1;       // Of one that speaks: what `take` got.
  };
  void Run();
  void Hear(int fd);
  // With the lock held. Forgets one that is silent; its descriptor stays.
  Newcomer TakeSilent(std::list<Newcomer>::iterator one);
  // With the lock held. Ends the connection of one that speaks. Returns the one behind it.
  std::list<Newcomer>::iterator Drop(std::list<Newcomer>::iterator one);
  // Closes those whose time is over or that have sent too much or are closed already. Returns the seconds after which
  // that is to be done again; negative: not before another arrives.
  double Bound(double now);
  void Wake();

  const Limits limits_;
  const std::function<void(int, int)> take_;
  const int epoll_;
  const int wake_;  // An eventfd.

  std::mutex mutex_;
  // The oldest first.
  std::list<Newcomer> silent_;
  std::unordered_map<int, std::list<Newcomer>::iterator> silent_by_fd_;
  std::list<Newcomer> speaking_;
  bool ending_ = false;
  std::thread thread_;
};

}  // namespace tacc::coordinator

#endif  // TACC_COORDINATOR_SERVICE_NEWCOMERS_H_
