// Teams on the host: a fiber a thread, which run in turn from Sync to Sync.
#include <ucontext.h>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <vector>

#include "kernels/check.h"
#include "kernels/cuda/launch.h"

namespace tacc::kernels::cuda {

struct Team::Block {
  static constexpr size_t kStackBytes = 64 << 10;

  int size = 0;
  std::vector<std::max_align_t> shared, slots;
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

  // All threads of one team, round by round; a round ends when each has come to a Sync or to its end.
  void Run() {
    const uintptr_t self = reinterpret_cast<uintptr_t>(this);
    is_done.assign(size, 0);
    for (int i = 0; i < size; ++i) {
      TACC_KERNEL_CHECK(getcontext(&fibers[i]) == 0);
      fibers[i].uc_stack = {.ss_sp = stacks[i].get(), .ss_flags = 0, .ss_size = kStackBytes};
      fibers[i].uc_link = &scheduler;
      makecontext(&fibers[i], reinterpret_cast<void (*)()>(&Entry), 2, static_cast<unsigned>(self >> 32),
                  static_cast<unsigned>(self));
    }
    for (int num_done = 0; num_done < size;) {
      const int before = num_done;
      num_done = 0;
      for (current = size - 1; current >= 0; --current) {
        TACC_KERNEL_CHECK(before == 0 || !is_done[current]);  // One ended while another waits in a Sync.
        TACC_KERNEL_CHECK(swapcontext(&scheduler, &fibers[current]) == 0);
        num_done += is_done[current];
      }
    }
  }
};

int Team::size() const { return block_->size; }

void Team::Sync() const { TACC_KERNEL_CHECK(swapcontext(&block_->fibers[rank_], &block_->scheduler) == 0); }

void* Team::SharedBytes() const { return block_->shared.data(); }

void* Team::Slot(int rank) const { return reinterpret_cast<char*>(block_->slots.data()) + 16 * rank; }

void RunTeams(int64_t num_teams, int team_size, int64_t shared_bytes, const std::function<void(Team&, int64_t)>& f) {
  TACC_KERNEL_CHECK(team_size > 0 && team_size <= kMaxTeam && team_size % kWarp == 0);
  TACC_KERNEL_CHECK(shared_bytes >= 0 && shared_bytes <= kMaxSharedBytes);
  // Two warps show what more would show, sooner.
  team_size = std::min(team_size, 2 * kWarp);
  Team::Block block;
  block.size = team_size;
  block.shared.resize(shared_bytes / sizeof(std::max_align_t) + 1);
  block.slots.resize(16 * team_size / sizeof(std::max_align_t) + 1);
  block.fibers.resize(team_size);
  for (int i = 0; i < team_size; ++i) block.stacks.push_back(std::make_unique<char[]>(Team::Block::kStackBytes));
  block.f = &f;
  for (block.index = 0; block.index < num_teams; ++block.index) block.Run();
}

}  // namespace tacc::kernels::cuda
