// Teams on the host: a fiber a thread, which run in turn from Sync to Sync.
#include <ucontext.h>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <vector>

#include "kernels/check.h"
#include "kernels/cuda/launch/launch.h"

namespace tacc::kernels::cuda {
namespace {

// What lies in memory that nobody has written: NaN in every floating dtype, -1 in integers.
constexpr unsigned char kUnwritten = 0xff;

struct alignas(kSharedAlignment) Line {
  unsigned char bytes[kSharedAlignment];
};

// Some number that differs from round to round and from team to team, the same in every run.
uint64_t Mixed(uint64_t team, uint64_t round) {
  uint64_t x = team * 0x9E3779B97F4A7C15u + round * 0xC2B2AE3D27D4EB4Fu + 1;
  x = (x ^ (x >> 31)) * 0xBF58476D1CE4E5B9u;
  return x ^ (x >> 29);
}

}  // namespace

struct Team::Block {
  static constexpr size_t kStackBytes = 64 << 10;

  int size = 0;
  int64_t shared_bytes = 0;
  std::vector<Line> shared;  // the last one is watched
  std::vector<std::max_align_t> slots;
  std::vector<std::unique_ptr<char[]>> stacks;
  std::vector<ucontext_t> fibers;
  ucontext_t scheduler;
  int current = 0;
  std::vector<char> is_done;
  const std::function<void(Team&, int64_t)>* f = nullptr;
  int64_t index = 0;

  void RunFiber() {
    Team team(this, current);
    (*f)(team, index);
    is_done[current] = 1;
  }

  static void Entry(unsigned high, unsigned low) {
    reinterpret_cast<Block*>((static_cast<uintptr_t>(high) << 32) | low)->RunFiber();
  }

  unsigned char* shared_begin() { return reinterpret_cast<unsigned char*>(shared.data()); }
  unsigned char* shared_end() { return shared_begin() + shared.size() * sizeof(Line); }

  // All threads of one team, round by round; a round ends when each has come to a Sync or to its end. Threads start
  // anywhere and go up or down, so that a Sync that is missing gives wrong results in some round.
  void Run() {
    const uintptr_t self = reinterpret_cast<uintptr_t>(this);
    std::fill(shared_begin(), shared_end(), kUnwritten);
    is_done.assign(size, 0);
    for (int i = 0; i < size; ++i) {
      TACC_KERNEL_CHECK(getcontext(&fibers[i]) == 0);
      fibers[i].uc_stack = {.ss_sp = stacks[i].get(), .ss_flags = 0, .ss_size = kStackBytes};
      fibers[i].uc_link = &scheduler;
      makecontext(&fibers[i], reinterpret_cast<void (*)()>(&Entry), 2, static_cast<unsigned>(self >> 32),
                  static_cast<unsigned>(self));
    }
    uint64_t round = 0;
    for (int num_done = 0; num_done < size; ++round) {
      const int before = num_done;
      num_done = 0;
      const uint64_t order = Mixed(static_cast<uint64_t>(index), round);
      const int first = static_cast<int>((order >> 8) % static_cast<uint64_t>(size));
      for (int i = 0; i < size; ++i) {
        current = (first + (order % 2 == 0 ? i : size - i)) % size;
        TACC_KERNEL_CHECK(before == 0 || !is_done[current]);  // One ended while another waits in a Sync.
        TACC_KERNEL_CHECK(swapcontext(&scheduler, &fibers[current]) == 0);
        num_done += is_done[current];
      }
    }
    // Nobody wrote behind the shared memory that was asked for.
    unsigned char* end = shared_end();
    TACC_KERNEL_CHECK(
        std::all_of(shared_begin() + shared_bytes, end, [](unsigned char byte) { return byte == kUnwritten; }));
  }
};

int Team::size() const { return block_->size; }

void Team::Sync() const { TACC_KERNEL_CHECK(swapcontext(&block_->fibers[rank_], &block_->scheduler) == 0); }

void* Team::SharedBytes() const { return block_->shared.data(); }

void* Team::Slot(int rank) const { return reinterpret_cast<char*>(block_->slots.data()) + 16 * rank; }

int HostTeamSize(int team_size) { return std::min(team_size, 2 * kWarp); }

void RunTeams(int64_t num_teams, int team_size, int64_t shared_bytes, const std::function<void(Team&, int64_t)>& f) {
  Team::Block block;
  block.size = team_size;
  block.shared_bytes = shared_bytes;
  block.shared.resize(static_cast<size_t>(shared_bytes) / sizeof(Line) + 2);
  block.slots.resize(16 * team_size / sizeof(std::max_align_t) + 1);
  block.fibers.resize(team_size);
  for (int i = 0; i < team_size; ++i) block.stacks.push_back(std::make_unique<char[]>(Team::Block::kStackBytes));
  block.f = &f;
  for (block.index = 0; block.index < num_teams; ++block.index) block.Run();
}

}  // namespace tacc::kernels::cuda
