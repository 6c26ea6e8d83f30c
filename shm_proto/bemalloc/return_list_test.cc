// SPDX-License-Identifier: Apache-2.0
#include "shm_proto/bemalloc/return_list.h"

#include <gtest/gtest.h>
#include <ucontext.h>

#include <algorithm>
#include <functional>
#include <utility>
#include <vector>

namespace sluice::bemalloc {
namespace {

// Runs a few programs as coroutines, switching before every atomic step, once for every possible
// order of their steps.
class Explorer {
 public:
  using Programs = std::vector<std::function<void()>>;

  // Calls `run` for one interleaving after another until all were tried; `run` builds the state,
  // calls Interleave() and checks the outcome. How many there were.
  static uint64_t TryAll(const std::function<void()>& run) {
    choices_.clear();
    uint64_t tried = 0;
    do {
      depth_ = 0;
      run();
      ++tried;
      while (!choices_.empty() && choices_.back().taken + 1 == choices_.back().of)
        choices_.pop_back();
      if (!choices_.empty()) ++choices_.back().taken;
    } while (!choices_.empty() && !testing::Test::HasFailure());
    return tried;
  }

  static void Interleave(Programs programs) {
    programs_ = std::move(programs);
    threads_.assign(programs_.size(), {});
    for (size_t i = 0; i < programs_.size(); ++i) {
      Thread& thread = threads_[i];
      thread.stack.resize(64 * 1024);
      getcontext(&thread.context);
      thread.context.uc_stack.ss_sp = thread.stack.data();
      thread.context.uc_stack.ss_size = thread.stack.size();
      thread.context.uc_link = &main_;
      makecontext(&thread.context, reinterpret_cast<void (*)()>(+[] {
        programs_[current_]();
        threads_[current_].done = true;
      }),
                  0);
    }
    while (true) {
      std::vector<size_t> ready;
      for (size_t i = 0; i < threads_.size(); ++i) {
        if (!threads_[i].done) ready.push_back(i);
      }
      if (ready.empty()) break;
      current_ = ready[Choose(ready.size())];
      swapcontext(&main_, &threads_[current_].context);
    }
    current_ = kNobody;
  }

  // Before each atomic step.
  static void Step() {
    if (current_ == kNobody) return;
    swapcontext(&threads_[current_].context, &main_);
  }

 private:
  struct Choice {
    size_t taken, of;
  };
  struct Thread {
    ucontext_t context;
    std::vector<char> stack;
    bool done = false;
  };
  static constexpr size_t kNobody = ~size_t{0};

  static size_t Choose(size_t of) {
    if (depth_ == choices_.size()) choices_.push_back({0, of});
    return choices_[depth_++].taken;
  }

  static inline std::vector<Choice> choices_;
  static inline size_t depth_ = 0;
  static inline Programs programs_;
  static inline std::vector<Thread> threads_;
  static inline size_t current_ = kNobody;
  static inline ucontext_t main_;
};

// An atomic each of whose operations is one step of the explorer.
template <typename T>
class SteppedAtomic {
 public:
  T load(std::memory_order) const {
    Explorer::Step();
    return value_;
  }
  bool compare_exchange_strong(T& expected, T desired, std::memory_order, std::memory_order) {
    Explorer::Step();
    if (value_ != expected) {
      expected = value_;
      return false;
    }
    value_ = desired;
    return true;
  }
  T exchange(T desired, std::memory_order) {
    Explorer::Step();
    return std::exchange(value_, desired);
  }

 private:
  T value_{};
};

int buffers[4];

struct Outcome {
  ReturnList<2, SteppedAtomic> list;
  std::vector<void*> taken, refused;

  std::function<void()> Put(int number, uint32_t hint) {
    return [this, number, hint] {
      if (!list.Put(&buffers[number], hint)) refused.push_back(&buffers[number]);
    };
  }
  void Take() {
    list.TakeAll([this](void* buffer) { taken.push_back(buffer); });
  }
  std::vector<void*> All() {
    Take();
    std::vector<void*> all = taken;
    all.insert(all.end(), refused.begin(), refused.end());
    std::ranges::sort(all);
    return all;
  }
};

// Whatever the order, each buffer is taken once or its Put said no.
TEST(ReturnList, LosesAndDoublesNothingInAnyInterleavingWithItsTaker) {
  const uint64_t tried = Explorer::TryAll([] {
    Outcome outcome;
    Explorer::Interleave({outcome.Put(0, 0), outcome.Put(1, 1), [&] { outcome.Take(); }});
    ASSERT_EQ(outcome.All(), (std::vector<void*>{&buffers[0], &buffers[1]}));
    ASSERT_TRUE(outcome.refused.empty());
  });
  EXPECT_GT(tried, 500u);
}

TEST(ReturnList, OfThreeProducersForTwoSlotsAtMostOneIsRefused) {
  const uint64_t tried = Explorer::TryAll([] {
    Outcome outcome;
    Explorer::Interleave({outcome.Put(0, 0), outcome.Put(1, 0), outcome.Put(2, 1)});
    ASSERT_EQ(outcome.All(), (std::vector<void*>{&buffers[0], &buffers[1], &buffers[2]}));
    ASSERT_EQ(outcome.refused.size(), 1u);
  });
  EXPECT_GT(tried, 500u);
}

TEST(ReturnList, TwoTakersShareWhatIsThere) {
  const uint64_t tried = Explorer::TryAll([] {
    ReturnList<2, SteppedAtomic> list;
    ASSERT_TRUE(list.Put(&buffers[0], 0));
    std::vector<void*> taken;
    bool put = false;
    const auto take = [&] { list.TakeAll([&](void* buffer) { taken.push_back(buffer); }); };
    Explorer::Interleave({take, take, [&] { put = list.Put(&buffers[1], 0); }});
    take();
    std::ranges::sort(taken);
    ASSERT_TRUE(put);
    ASSERT_EQ(taken, (std::vector<void*>{&buffers[0], &buffers[1]}));
  });
  EXPECT_GT(tried, 100u);
}

TEST(ReturnList, HoldsNoMoreThanItsSlots) {
  ReturnList<4> list;
  int many[5];
  for (int i = 0; i < 4; ++i)
    EXPECT_TRUE(list.Put(&many[i], 0xfffffffeu + static_cast<uint32_t>(i)));
  EXPECT_FALSE(list.Put(&many[4], 0));
  int taken = 0;
  list.TakeAll([&](void*) { ++taken; });
  EXPECT_EQ(taken, 4);
  EXPECT_TRUE(list.Put(&many[4], 0xffffffffu));
}

}  // namespace
}  // namespace sluice::bemalloc
