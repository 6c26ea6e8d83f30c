// SPDX-License-Identifier: Apache-2.0
#include "daemon/control/peer_path.h"

#include <gtest/gtest.h>

#include <deque>
#include <set>
#include <vector>

#include "daemon/control/backoff.h"

namespace sluice::control {
namespace {

using handshake::Handshake;
using handshake::PeerClaims;
using handshake::Phase;
using handshake::RefuseReason;

class CountingRandom final : public Random {
 public:
  uint64_t Next() override { return next_++; }

 private:
  uint64_t next_ = 1'000;
};

SessionParameters Session(uint64_t peer_instance, uint64_t session, uint32_t epoch) {
  SessionParameters parameters;
  parameters.peer_instance = peer_instance;
  parameters.session = session;
  parameters.path_epoch = epoch;
  parameters.resumed = epoch > 1;
  return parameters;
}

TEST(PeerPath, TheFirstPathOfAPeerIsANewSession) {
  CountingRandom random;
  PeerPath path(1);
  EXPECT_EQ(path.MakeWish(3).lane, 3);
  EXPECT_EQ(path.MakeWish(3).resume_session, 0u);
  const auto decision = path.Decide({.instance = 2}, false, 1, random);
  ASSERT_TRUE(decision);
  EXPECT_NE(decision->session, 0u);
  EXPECT_EQ(decision->path_epoch, 1u);
  EXPECT_FALSE(decision->resumed);
}

TEST(PeerPath, ALostPathIsResumedWithTheNextEpochAndTheLaterOneOfBothEndsCounts) {
  CountingRandom random;
  PeerPath path(1);
  path.OnUp(Session(2, 77, 1), 1);
  EXPECT_TRUE(path.OnLost(77, 1, false));
  EXPECT_EQ(path.MakeWish(0).resume_session, 77u);
  EXPECT_EQ(path.MakeWish(0).resume_instance, 2u);
  EXPECT_EQ(path.MakeWish(0).path_epoch, 2u);
  const auto same = path.Decide({.instance = 2, .resume_session = 77, .path_epoch = 2}, false, 2,
                                random);
  EXPECT_TRUE(same->resumed);
  EXPECT_EQ(same->path_epoch, 2u);
  const auto later = path.Decide({.instance = 2, .resume_session = 77, .path_epoch = 9}, false, 2,
                                 random);
  EXPECT_EQ(later->path_epoch, 9u);
}

TEST(PeerPath, AnotherRunOfThePeerOrAnotherSessionIsNeverResumed) {
  CountingRandom random;
  PeerPath path(1);
  path.OnUp(Session(2, 77, 1), 1);
  EXPECT_FALSE(path.Decide({.instance = 3, .resume_session = 77, .path_epoch = 2}, false, 2, random)
                   ->resumed);
  EXPECT_FALSE(path.Decide({.instance = 2, .resume_session = 78, .path_epoch = 2}, false, 2, random)
                   ->resumed);
  EXPECT_FALSE(path.Decide({.instance = 2}, false, 2, random)->resumed);
  EXPECT_TRUE(path.OnLost(77, 1, true));
  EXPECT_FALSE(path.Decide({.instance = 2, .resume_session = 77, .path_epoch = 2}, false, 2, random)
                   ->resumed);
  EXPECT_EQ(path.MakeWish(0).resume_session, 0u);
}

TEST(PeerPath, ANewSessionNeverHasTheNumberOfAnOldOneOrZero) {
  class Chosen final : public Random {
   public:
    uint64_t Next() override { return numbers_[next_++]; }
    const uint64_t numbers_[4] = {0, 77, 78, 79};
    int next_ = 0;
  } random;
  PeerPath path(1);
  path.OnUp(Session(2, 77, 1), 1);
  EXPECT_EQ(path.Decide({.instance = 2, .resume_session = 78, .path_epoch = 2}, false, 2, random)
                ->session,
            79u);
}

TEST(PeerPath, EpochsThatRunOutEndTheSessionInsteadOfWrapping) {
  CountingRandom random;
  PeerPath path(1);
  path.OnUp(Session(2, 77, UINT32_MAX - 1), 1);
  EXPECT_EQ(path.MakeWish(0).resume_session, 0u);
  EXPECT_FALSE(path.Decide({.instance = 2, .resume_session = 77, .path_epoch = 5}, false, 2, random)
                   ->resumed);
  PeerPath other(1);
  other.OnUp(Session(2, 77, 1), 1);
  const PeerClaims greedy{.instance = 2, .resume_session = 77, .path_epoch = UINT32_MAX};
  EXPECT_FALSE(other.Decide(greedy, false, 2, random)->resumed);
}

TEST(PeerPath, NewsOfAnOlderPathChangeNothing) {
  PeerPath path(1);
  path.OnUp(Session(2, 77, 1), 1);
  path.OnUp(Session(2, 77, 2), 2);
  EXPECT_FALSE(path.OnLost(77, 1, false));
  EXPECT_FALSE(path.OnLost(76, 2, true));
  EXPECT_TRUE(path.up());
  EXPECT_TRUE(path.OnLost(77, 2, false));
  EXPECT_FALSE(path.up());
  EXPECT_TRUE(path.session_alive());
  EXPECT_TRUE(path.OnLost(77, 2, true)) << "the session may end later than its path";
  EXPECT_FALSE(path.session_alive());
}

TEST(PeerPath, AResumptionOfASessionThatEndedMeanwhileDoesNotFit) {
  PeerPath path(1);
  path.OnUp(Session(2, 77, 1), 1);
  EXPECT_TRUE(path.Fits(Session(2, 77, 2)));
  EXPECT_TRUE(path.Fits(Session(2, 78, 1)));
  path.OnLost(77, 1, true);
  EXPECT_FALSE(path.Fits(Session(2, 77, 2)));
}

TEST(PeerPath, WhileBothDialTheConnectionOfTheLowerInstanceIsKept) {
  CountingRandom random;
  EXPECT_FALSE(PeerPath(1).Decide({.instance = 2}, true, 1, random)) << "ours is kept";
  EXPECT_TRUE(PeerPath(2).Decide({.instance = 1}, true, 1, random)) << "theirs is kept";
  EXPECT_TRUE(PeerPath(1).Decide({.instance = 2}, false, 1, random)) << "there is no other";
}

TEST(PeerPath, APeerThatLostItsPathAndDialsAgainReplacesIt) {
  CountingRandom random;
  PeerPath path(1);
  path.OnUp(Session(2, 77, 1), 5);
  EXPECT_FALSE(path.Decide({.instance = 2}, false, 4, random))
      << "dialled before it knew of the path";
  EXPECT_TRUE(path.Decide({.instance = 3}, false, 4, random)) << "another run of it";
  const auto decision = path.Decide({.instance = 2, .resume_session = 77, .path_epoch = 2}, false,
                                    6, random);
  ASSERT_TRUE(decision);
  EXPECT_TRUE(decision->resumed);
}

// --- crossing dials, in every order of events ---

// Two daemons that dial each other once, with the glue that Peers adds to PeerPath. Copying it
// forks the world.
struct World {
  struct End {
    PeerPath path;
    uint64_t arrivals = 0;
    int ups = 0;
    int connection = -1;    // Of its latest path.
    uint64_t up_since = 0;  // Its arrival number.
  };
  struct Message {
    std::vector<std::byte> bytes;  // Empty: the close.
  };
  struct Connection {  // Number 0 was dialled by end 0, number 1 by end 1.
    std::vector<Handshake> dialer,
        listener;  // At most one of each: none before it is connected or accepted.
    bool dialer_open = false, listener_open = false, connected = false, accepted = false;
    uint64_t arrival = 0;
    int dialer_took = 0, listener_took = 0;  // Messages.
    std::deque<Message> to_listener, to_dialer;
  };

  explicit World(const handshake::Settings (&both)[2])
      : settings(both), ends{{PeerPath(both[0].instance)}, {PeerPath(both[1].instance)}} {}

  const handshake::Settings (&settings)[2];
  CountingRandom random;
  End ends[2];
  Connection connections[2];

  static void Flush(Handshake& from, std::deque<Message>& queue) {
    if (from.Output().empty()) return;
    queue.push_back({{from.Output().begin(), from.Output().end()}});
    from.OnWritten(from.Output().size());
  }

  void CloseDialer(Connection& c) {
    if (!c.dialer_open) return;
    Flush(c.dialer[0], c.to_listener);
    c.dialer_open = false;
    c.to_listener.push_back({});
  }
  void CloseListener(Connection& c) {
    if (!c.listener_open) return;
    Flush(c.listener[0], c.to_dialer);
    c.listener_open = false;
    c.to_dialer.push_back({});
  }

  bool Shaking(int end) const {
    const Connection& own = connections[end];
    return own.dialer_open && own.dialer[0].phase() == Phase::kExchanging;
  }

  void Up(int end, int connection, const SessionParameters& session) {
    ends[end].path.OnUp(session, ++ends[end].arrivals);
    ends[end].ups++;
    ends[end].connection = connection;
    ends[end].up_since = ends[end].arrivals;
  }

  void DialerGot(int number, const Message& message) {
    Connection& c = connections[number];
    if (!c.dialer_open) return;
    Handshake& handshake = c.dialer[0];
    if (message.bytes.empty()) return CloseDialer(c);
    Feed(handshake, message.bytes);
    if (handshake.phase() == Phase::kDeciding) {
      if (ends[number].path.up()) {
        handshake.Reject(RefuseReason::kDuplicate, "");
      } else {
        handshake.Proceed(0);
      }
    }
    Flush(handshake, c.to_listener);
    if (handshake.phase() == Phase::kFailed) CloseDialer(c);
    if (handshake.phase() == Phase::kDone) Up(number, number, handshake.Parameters());
  }

  void ListenerGot(int number, const Message& message) {
    Connection& c = connections[number];
    const int end = 1 - number;
    if (!c.listener_open) return;
    Handshake& handshake = c.listener[0];
    if (message.bytes.empty()) return CloseListener(c);
    Feed(handshake, message.bytes);
    if (handshake.phase() == Phase::kDeciding) {
      const auto decision = ends[end].path.Decide(handshake.peer(), Shaking(end), c.arrival,
                                                  random);
      if (decision) {
        handshake.Grant(*decision);
        Up(end, number, handshake.Parameters());
        StopDial(end);
      } else {
        handshake.Reject(RefuseReason::kDuplicate, "");
      }
    }
    Flush(handshake, c.to_dialer);
    if (handshake.phase() == Phase::kFailed) CloseListener(c);
  }

  void StopDial(int end) {
    Connection& own = connections[end];
    if (!own.connected) own.connected = true;  // It never will be.
    if (own.dialer_open && own.dialer[0].phase() != Phase::kDone) {
      own.dialer[0].Reject(RefuseReason::kDuplicate, "");
      CloseDialer(own);
    } else if (own.dialer.empty()) {
      own.to_listener.push_back({});
    }
  }

  // All that what follows depends on; orders that lead to the same need be followed once only.
  std::vector<int> Signature() const {
    std::vector<int> all;
    for (const End& end : ends) {
      for (const uint64_t number : {end.arrivals, end.up_since})
        all.push_back(static_cast<int>(number));
      all.insert(all.end(), {end.path.up(), end.ups, end.connection});
    }
    for (const Connection& c : connections) {
      all.insert(all.end(), {c.connected, c.accepted, c.dialer_open, c.listener_open,
                             static_cast<int>(c.arrival), c.dialer_took, c.listener_took});
      for (const auto* queue : {&c.to_listener, &c.to_dialer}) {
        all.push_back(static_cast<int>(queue->size()));
        for (const Message& message : *queue) {
          // Its type; the close has none.
          all.push_back(message.bytes.empty()
                            ? 0
                            : static_cast<int>(message.bytes[offsetof(handshake::Prefix, type)]));
        }
      }
      for (const auto* end : {&c.dialer, &c.listener}) {
        all.push_back(end->empty() ? -1 : static_cast<int>(end->front().phase()));
      }
    }
    return all;
  }

  static void Feed(Handshake& to, const std::vector<std::byte>& bytes) {
    size_t done = 0;
    while (done < bytes.size() && to.WantedBytes() > 0) {
      const size_t take = std::min(to.WantedBytes(), bytes.size() - done);
      to.OnBytes(std::span(bytes).subspan(done, take), 0);
      done += take;
    }
  }

  // What may happen next; 8 kinds of event.
  bool Can(int event) const {
    const Connection& c = connections[event / 4];
    switch (event % 4) {
      case 0: return !c.connected;
      case 1: return !c.accepted;
      case 2: return c.accepted && !c.to_listener.empty();
      default: return c.connected && !c.to_dialer.empty();
    }
  }

  void Do(int event) {
    const int number = event / 4;
    Connection& c = connections[number];
    switch (event % 4) {
      case 0:
        c.connected = c.dialer_open = true;
        c.dialer.push_back(
            Handshake::Dial(settings[number], ends[number].path.MakeWish(0), random, 0));
        return Flush(c.dialer[0], c.to_listener);
      case 1:
        c.accepted = c.listener_open = true;
        c.arrival = ++ends[1 - number].arrivals;
        c.listener.push_back(Handshake::Listen(settings[1 - number], random, 0));
        return;
      case 2: {
        const Message message = c.to_listener.front();
        c.to_listener.pop_front();
        ++c.listener_took;
        return ListenerGot(number, message);
      }
      default: {
        const Message message = c.to_dialer.front();
        c.to_dialer.pop_front();
        ++c.dialer_took;
        return DialerGot(number, message);
      }
    }
  }
};

struct Tally {
  std::set<std::vector<int>> seen;
  size_t ends = 0;
  std::set<int> kept;
};

void Explore(const World& world, Tally& tally, std::vector<int>& trace) {
  if (!tally.seen.insert(world.Signature()).second) return;
  bool moved = false;
  for (int event = 0; event < 8; ++event) {
    if (!world.Can(event)) continue;
    moved = true;
    World next = world;
    next.Do(event);
    trace.push_back(event);
    Explore(next, tally, trace);
    trace.pop_back();
    if (::testing::Test::HasFailure()) return;
  }
  if (moved) return;
  ++tally.ends;
  const auto& [a, b] = world.ends;
  EXPECT_TRUE(a.path.up() && b.path.up()) << ::testing::PrintToString(trace);
  EXPECT_EQ(a.path.session(), b.path.session()) << ::testing::PrintToString(trace);
  EXPECT_EQ(a.connection, b.connection) << ::testing::PrintToString(trace);
  EXPECT_EQ(a.ups, 1) << "a path was thrown away: " << ::testing::PrintToString(trace);
  EXPECT_EQ(b.ups, 1) << "a path was thrown away: " << ::testing::PrintToString(trace);
  tally.kept.insert(a.connection);
}

TEST(PeerPath, CrossingDialsEndInOneConnectionInEveryOrderOfEvents) {
  // End 0 is the lower one; the other way round is the same world with its ends renamed.
  handshake::Settings settings[2];
  settings[0].instance = 1;
  settings[1].instance = 2;
  Tally tally;
  std::vector<int> trace;
  Explore(World(settings), tally, trace);
  EXPECT_GT(tally.seen.size(), 100u);
  EXPECT_GT(tally.ends, 5u);
  EXPECT_EQ(tally.kept, (std::set<int>{0, 1})) << "either is kept where only one is under way";
}

// --- backoff ---

TEST(Backoff, DoublesUpToItsCapWithJitterAndStartsAgainWhenReset) {
  CountingRandom random;
  Backoff backoff(10, 100);
  for (const uint64_t base : {10, 20, 40, 80, 100, 100, 100}) {
    const uint64_t pause = backoff.NextNs(random);
    EXPECT_LE(pause, base);
    EXPECT_GE(pause, base / 2);
  }
  backoff.Reset();
  EXPECT_LE(backoff.NextNs(random), 10u);
}

TEST(Backoff, NeverEndsAndNeverOverflows) {
  CountingRandom random;
  Backoff backoff(1, UINT64_MAX);
  for (int i = 0; i < 200; ++i) backoff.NextNs(random);
  EXPECT_GE(backoff.NextNs(random), UINT64_MAX / 4);
}

TEST(Backoff, TheSameFailureSpreadsACrowd) {
  std::set<uint64_t> pauses;
  for (uint64_t seed = 0; seed < 100; ++seed) {
    class Fixed final : public Random {
     public:
      explicit Fixed(uint64_t value) : value_(value) {}
      uint64_t Next() override { return value_; }
      uint64_t value_;
    } random(seed * 7'919);
    pauses.insert(Backoff(1'000'000, 1'000'000'000).NextNs(random));
  }
  EXPECT_GT(pauses.size(), 50u);
}

}  // namespace
}  // namespace sluice::control
